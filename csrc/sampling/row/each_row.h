// Runs the rows of a sampler call on the threads, with one workspace per thread.
#pragma once

#include <algorithm>
#include <atomic>

#include "core/parallel.h"
#include "sampling/row/logits.h"

namespace decodestep::DECODESTEP_BUILD {

template <LogitType type, class Args, class Body>
void each_typed_row(const Args& args, Body&& body) {
    // Waking the pool costs more than sampling two rows of 128k tokens on one thread.
    const size_t workers =
        args.batch * args.vocab < (1u << 18) ? 1 : std::min<size_t>(static_cast<size_t>(args.threads), args.batch);
    Workspaces spaces(workers, args.vocab);
    std::atomic<size_t> next{0};
    parallel_for(workers, args.threads, [&](size_t worker) {
        for (size_t b; (b = next.fetch_add(1, std::memory_order_relaxed)) < args.batch;) {
            size_t at = b;
            if constexpr (requires { args.places; }) at = args.places ? args.places[b] : b;
            const auto* data = static_cast<const char*>(args.logits) + static_cast<ptrdiff_t>(at) * args.row_bytes;
            using Item = typename Logits<type>::Item;
            body(Logits<type>{reinterpret_cast<const Item*>(data), args.vocab}, b, spaces[worker]);
        }
    });
}

// Calls body(logits of row b, b, workspace) for every row. Threads claim one row after the other.
template <class Args, class Body>
void each_row(const Args& args, Body&& body) {
    switch (args.dtype) {
        case LogitType::f32:
            return each_typed_row<LogitType::f32>(args, body);
        case LogitType::bf16:
            return each_typed_row<LogitType::bf16>(args, body);
        case LogitType::f16:
            return each_typed_row<LogitType::f16>(args, body);
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
