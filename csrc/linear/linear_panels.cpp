#include "linear/linear_panels.h"

#include <algorithm>

#include "core/parallel.h"
#include "linear/byte_tile.h"
#include "linear/float_tile.h"
#include "linear/linear_panels_tasks.h"
#include "linear/panel_product.h"
#include "linear/panel_streams.h"
#include "linear/stored_tile.h"

namespace decodestep::DECODESTEP_ISA {
namespace {

// Tokens whose sums of 32 outputs stay in registers.
constexpr size_t kRegisterTokens = kVectorRegisters >= 32 ? 6 : 2;

// T tokens as bytes times a panel that is read as it lies in memory.
template <Format F, int T>
void byte_tile(size_t blocks, const uint8_t* panel, const uint8_t* next_panel, const Activations& x, size_t first,
               float (*outputs)[kPanelOutputs]) {
    constexpr PanelLayout layout = panel_layout(F);
    const PanelPrefetcher<F> prefetcher(panel, next_panel, blocks);
    const uint8_t* block = panel;
    FloatSums<T, 2> y;
    clear<T, 2>(y);
    for (size_t b = 0; b < blocks; b += layout.pieces, block += layout.block_bytes()) {
        const auto quads = [&](size_t i) DECODESTEP_INLINE_LAMBDA {
            prefetcher.advance(b + i);
            return PanelQuads<F>{block + i * layout.piece_bytes()};
        };
        add_block<F, T, 2>(quads, 0, block, x, x.at(first, b), y);
    }
    store_outputs<T, 2>(y, 0, outputs);
    add_residuals<F, T>(panel, x, first, outputs);
}

// T, the number of tokens, as a constant.
template <Format F, int T = 1>
void tile_of(size_t tokens, size_t blocks, const uint8_t* panel, const uint8_t* next_panel, const Activations& x,
             size_t first, float (*outputs)[kPanelOutputs]) {
    if constexpr (T < kRegisterTokens) {
        if (tokens > T) return tile_of<F, T + 1>(tokens, blocks, panel, next_panel, x, first, outputs);
    }
    if constexpr (quantises_activations(F))
        byte_tile<F, T>(blocks, panel, next_panel, x, first, outputs);
    else
        float_tile<F, T>(blocks, panel, next_panel, x, first, outputs);
}

template <Format F>
void tiles_of(size_t blocks, const uint8_t* panel, const uint8_t* next_panel, const Activations& x, size_t first,
              size_t tokens, float (*outputs)[kPanelOutputs]) {
    if constexpr (kTileTokens > kRegisterTokens && quantises_activations(F)) {
        if (tokens > kRegisterTokens) return stored_tiles<F>(blocks, panel, next_panel, x, first, tokens, outputs);
    }
    each_tile<kRegisterTokens>(tokens, [&](size_t t, size_t count) {
        tile_of<F>(count, blocks, panel, t == 0 ? next_panel : nullptr, x, first + t, outputs + t);
    });
}

// Calls body<F>() for the format.
template <class Body>
void with_format(Format format, Body&& body) {
    switch (format) {
        case Format::f32:
            return body.template operator()<Format::f32>();
        case Format::f16:
            return body.template operator()<Format::f16>();
        case Format::bf16:
            return body.template operator()<Format::bf16>();
        case Format::q4_0:
            return body.template operator()<Format::q4_0>();
        case Format::q4_1:
            return body.template operator()<Format::q4_1>();
        case Format::q8_0:
            return body.template operator()<Format::q8_0>();
        case Format::q4_k:
            return body.template operator()<Format::q4_k>();
        case Format::q5_k:
            return body.template operator()<Format::q5_k>();
        case Format::q6_k:
            return body.template operator()<Format::q6_k>();
        case Format::q5_0:
            return body.template operator()<Format::q5_0>();
        case Format::q5_1:
            return body.template operator()<Format::q5_1>();
        case Format::iq4_nl:
            return body.template operator()<Format::iq4_nl>();
        case Format::iq4_xs:
            return body.template operator()<Format::iq4_xs>();
        case Format::mxfp4:
            return body.template operator()<Format::mxfp4>();
    }
}

}  // namespace

void panel_tile(Format format, size_t blocks, const uint8_t* panel, const uint8_t* next_panel, const Activations& x,
                size_t first, size_t tokens, float (*outputs)[kPanelOutputs]) {
    with_format(format, [&]<Format F>() { tiles_of<F>(blocks, panel, next_panel, x, first, tokens, outputs); });
}

void stream_panels(Format format, size_t blocks, const PanelGroup& group, const Activations& x, size_t row,
                   float (*outputs)[kPanelOutputs]) {
    with_format(format, [&]<Format F>() {
        if constexpr (kStreams > 1) {
            if constexpr (quantises_activations(F))
                stream_bytes<F>(blocks, group, x, row, outputs);
            else
                stream_floats<F>(blocks, group, x, row, outputs);
        }
    });
}

LinearPanelsTasks::LinearPanelsTasks(const LinearPanels& call)
    : call_(call),
      panels_(call.w.count()),
      panels_per_task_((size_t{1} << 18) / (call.w.blocks() * kBlockInputs * kPanelOutputs * call.tokens / 8 + 1) + 1) {
    const size_t in = call.w.blocks() * kBlockInputs;
    const bool as_bytes = quantises_activations(call.w.format);
    space_.resize(Activations::floats(call.tokens, in, !as_bytes, as_bytes));
    x_ = Activations::in_space(space_.data(), call.tokens, in, !as_bytes, as_bytes);
}

void LinearPanelsTasks::read(size_t token) const {
    store_row(x_, token, call_.x + static_cast<ptrdiff_t>(token) * call_.x_stride, call_.w.in);
}

void LinearPanelsTasks::multiply(size_t task) const {
    const LinearPanelWeight& w = call_.w;
    const size_t end = std::min((task + 1) * panels_per_task_, panels_);
    multiply_panels(w, {task * panels_per_task_, end}, w.panel(end < panels_ ? end : end - 1), x_, call_.tokens,
                    [&](size_t p, size_t t, const float* outputs) {
                        const size_t first = p * kPanelOutputs, count = std::min(kPanelOutputs, w.out - first);
                        std::memcpy(call_.y + static_cast<ptrdiff_t>(t) * call_.y_stride + first, outputs,
                                    count * sizeof(float));
                    });
}

void linear_panels(const LinearPanels& a) {
    const LinearPanelsTasks tasks(a);
    const bool is_small = a.tokens * a.w.blocks() * kBlockInputs < (size_t{1} << 16);  // not worth waking workers
    parallel_for(tasks.read_count(), is_small ? 1 : a.threads, [&](size_t token) { tasks.read(token); });
    parallel_for(tasks.multiply_count(), a.threads, [&](size_t task) { tasks.multiply(task); });
}

}  // namespace decodestep::DECODESTEP_ISA
