// The rows of a call of the samplers, spread over threads that have a workspace each.
#pragma once

#include <algorithm>
#include <atomic>

#include "core/parallel.h"
#include "sampling/row/logits.h"

namespace decodestep::DECODESTEP_ISA {

template <Real real, class Args, class Body>
void each_row_of(const Args& args, Body&& body) {
    // A pool that has to be woken costs more than two rows.
    const size_t workers =
        args.batch * args.vocab < (1u << 18) ? 1 : std::min<size_t>(static_cast<size_t>(args.threads), args.batch);
    Workspaces spaces(workers, args.vocab);
    std::atomic<size_t> next{0};
    parallel_for(workers, args.threads, [&](size_t worker) {
        for (size_t b; (b = next.fetch_add(1, std::memory_order_relaxed)) < args.batch;) {
            const auto* data = static_cast<const char*>(args.logits) + static_cast<ptrdiff_t>(b) * args.row_bytes;
            using Item = typename Logits<real>::Item;
            body(Logits<real>{reinterpret_cast<const Item*>(data), args.vocab}, b, spaces[worker]);
        }
    });
}

// body(logits of row b, b, workspace) for every row, claimed one by one.
template <class Args, class Body>
void each_row(const Args& args, Body&& body) {
    switch (args.dtype) {
        case Real::f32:
            return each_row_of<Real::f32>(args, body);
        case Real::bf16:
            return each_row_of<Real::bf16>(args, body);
        case Real::f16:
            return each_row_of<Real::f16>(args, body);
    }
}

}  // namespace decodestep::DECODESTEP_ISA
