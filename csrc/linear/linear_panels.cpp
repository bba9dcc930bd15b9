#include "linear/linear_panels.h"

#include <algorithm>

#include "core/parallel.h"
#include "linear/linear_panels_tasks.h"
#include "linear/panel_product.h"

namespace decodestep::DECODESTEP_ISA {
namespace {

constexpr bool is_nibbles(Format f) { return f == Format::q4_0 || f == Format::q4_1; }

// Bytes and nibbles are stored unsigned: value = stored - offset.
constexpr int offset_of(Format f) { return f == Format::q4_0 ? 8 : f == Format::q8_0 ? kByteOffset : 0; }

constexpr size_t scales_at(Format f) { return is_nibbles(f) ? 512 : 1024; }

// How far ahead a panel is prefetched: panels are so short that the hardware prefetcher hardly gets going in one.
constexpr size_t kPanelPrefetchBytes = 8192;

// Prefetches a panel and the beginning of the next one, block by block, at a fixed distance ahead of the product.
template <Format F>
class PanelPrefetcher {
  public:
    PanelPrefetcher(const uint8_t* panel, const uint8_t* next_panel, size_t blocks)
        : panel_(panel), next_panel_(next_panel), blocks_(blocks), distance_(kPanelPrefetchBytes / kBytes) {
        if (distance_ > blocks) distance_ = blocks;
    }
    // Call when the product reads `block`.
    DECODESTEP_INLINE void advance(size_t block) const {
        if (!next_panel_) return;
        const size_t b = block + distance_;
        prefetch(b < blocks_ ? panel_ + b * kBytes : next_panel_ + (b - blocks_) * kBytes, kBytes);
    }

  private:
    static constexpr size_t kBytes = panel_block_bytes(F);
    const uint8_t *panel_, *next_panel_;
    size_t blocks_, distance_;
};

// sums[t] += products of one block of token t's bytes, x + t * stride, with 32 outputs, one integer for each output.
template <Format F, int T>
DECODESTEP_INLINE void block_sums(const uint8_t* p, const int8_t* x, size_t stride, i32x16 (&sums)[T][2]) {
    if constexpr (is_nibbles(F)) {
#pragma GCC unroll 4
        for (size_t j = 0; j < 4; ++j) {
            const u8x64 w0 = load_bytes(p + 128 * j), w1 = load_bytes(p + 128 * j + 64);
            const u8x64 low0 = low_nibbles(w0), low1 = low_nibbles(w1), high0 = high_nibbles(w0),
                        high1 = high_nibbles(w1);
#pragma GCC unroll 6
            for (int t = 0; t < T; ++t) {
                const i8x4 low = broadcast_quad(x + t * stride + 4 * j),
                           high = broadcast_quad(x + t * stride + 16 + 4 * j);
                sums[t][0] = dot_nibbles(sums[t][0], low0, low);
                sums[t][1] = dot_nibbles(sums[t][1], low1, low);
                sums[t][0] = dot_nibbles(sums[t][0], high0, high);
                sums[t][1] = dot_nibbles(sums[t][1], high1, high);
            }
        }
    } else {
#pragma GCC unroll 8
        for (size_t j = 0; j < 8; ++j) {
            const u8x64 w0 = load_bytes(p + 128 * j), w1 = load_bytes(p + 128 * j + 64);
#pragma GCC unroll 6
            for (int t = 0; t < T; ++t) {
                const i8x4 quad = broadcast_quad(x + t * stride + 4 * j);
                sums[t][0] = dot_bytes(sums[t][0], w0, quad);
                sums[t][1] = dot_bytes(sums[t][1], w1, quad);
            }
        }
    }
}

// y[t] += block p of the panel times block at + t * stride of x, for T tokens.
template <Format F, int T>
DECODESTEP_INLINE void add_block(const uint8_t* p, const QuantisedBlocks& x, size_t at, size_t stride,
                                 f32x16 (&y)[T][2]) {
    i32x16 sums[T][2];
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t)
        sums[t][0] = sums[t][1] = broadcast_int(offset_of(F) ? -offset_of(F) * x.sum[at + t * stride] : 0);
    block_sums<F, T>(p, x.bytes + kBlockInputs * at, kBlockInputs * stride, sums);
    const f32x16 scale0 = from_f16(p + scales_at(F)), scale1 = from_f16(p + scales_at(F) + 32);
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) {
        const f32x16 x_scale = broadcast(x.scale[at + t * stride]);
        y[t][0] = fma(scale0 * x_scale, to_float(sums[t][0]), y[t][0]);
        y[t][1] = fma(scale1 * x_scale, to_float(sums[t][1]), y[t][1]);
    }
}

// Adds the residuals of tokens [first, first + T), which belong to the same block p.
template <Format F, int T>
void add_residual(const uint8_t* p, const Activations& x, size_t first, float (*outputs)[kPanelOutputs]) {
    f32x16 y[T][2];
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) {
        y[t][0] = load(outputs[t]);
        y[t][1] = load(outputs[t] + kLanes);
    }
    add_block<F, T>(p, x.residual, first, 1, y);
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) {
        store(outputs[t], y[t][0]);
        store(outputs[t] + kLanes, y[t][1]);
    }
}

// Adds the residuals of T tokens. Most tokens have their outliers in the same block, which then is read once for all.
template <Format F, int T>
void add_residuals(const uint8_t* panel, const Activations& x, size_t first, float (*outputs)[kPanelOutputs]) {
    if (x.blocks() == 0) return;
    const int32_t* block = x.residual_block + first;
    if (std::all_of(block + 1, block + T, [&](int32_t other) { return other == block[0]; }))
        return add_residual<F, T>(panel + block[0] * panel_block_bytes(F), x, first, outputs);
    for (size_t t = 0; t < T; ++t)
        add_residual<F, 1>(panel + block[t] * panel_block_bytes(F), x, first + t, outputs + t);
}

// T tokens as bytes times a panel.
template <Format F, int T>
void byte_tile(size_t blocks, const uint8_t* panel, const uint8_t* next_panel, const Activations& x, size_t first,
               float (*outputs)[kPanelOutputs]) {
    const PanelPrefetcher<F> prefetcher(panel, next_panel, blocks);
    const uint8_t* p = panel;
    f32x16 y[T][2];
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) y[t][0] = y[t][1] = broadcast(0.0f);
    size_t at = first * x.blocks();
    for (size_t b = 0; b < blocks; ++b, ++at, p += panel_block_bytes(F)) {
        if constexpr (F == Format::q4_1) {
            const f32x16 minimum0 = from_f16(p + 576), minimum1 = from_f16(p + 608);
#pragma GCC unroll 6
            for (int t = 0; t < T; ++t) {
                const f32x16 block_sum = broadcast(x.block_sum[at + t * x.blocks()]);
                y[t][0] = fma(minimum0, block_sum, y[t][0]);
                y[t][1] = fma(minimum1, block_sum, y[t][1]);
            }
        }
        add_block<F, T>(p, x.quantised, at, x.blocks(), y);
        prefetcher.advance(b);
    }
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) {
        store(outputs[t], y[t][0]);
        store(outputs[t] + kLanes, y[t][1]);
    }
    add_residuals<F, T>(panel, x, first, outputs);
}

template <Format F>
DECODESTEP_INLINE f32x16 widened(const uint8_t* p) {
    if constexpr (F == Format::f32) return load(reinterpret_cast<const float*>(p));
    if constexpr (F == Format::f16) return from_f16(p);
    if constexpr (F == Format::bf16) return from_bf16(p);
}

// T tokens as float32 times a panel.
template <Format F, int T>
void float_tile(size_t blocks, const uint8_t* panel, const uint8_t* next_panel, const Activations& x, size_t first,
                float (*outputs)[kPanelOutputs]) {
    constexpr size_t kRow = panel_block_bytes(F) / kBlockInputs;
    const PanelPrefetcher<F> prefetcher(panel, next_panel, blocks);
    const float* values = x.values + first * x.in;
    const uint8_t* p = panel;
    f32x16 y[T][2];
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) y[t][0] = y[t][1] = broadcast(0.0f);
    for (size_t b = 0; b < blocks; ++b, values += kBlockInputs) {
        prefetcher.advance(b);
        for (size_t k = 0; k < kBlockInputs; ++k, p += kRow) {
            const f32x16 w0 = widened<F>(p), w1 = widened<F>(p + kRow / 2);
#pragma GCC unroll 6
            for (int t = 0; t < T; ++t) {
                const f32x16 value = broadcast(values[t * x.in + k]);
                y[t][0] = fma(w0, value, y[t][0]);
                y[t][1] = fma(w1, value, y[t][1]);
            }
        }
    }
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) {
        store(outputs[t], y[t][0]);
        store(outputs[t] + kLanes, y[t][1]);
    }
}

// T, the number of tokens, as a constant.
template <Format F, int T = 1>
void tile_of(size_t tokens, size_t blocks, const uint8_t* panel, const uint8_t* next_panel, const Activations& x,
             size_t first, float (*outputs)[kPanelOutputs]) {
    if constexpr (T < kTileTokens) {
        if (tokens > T) return tile_of<F, T + 1>(tokens, blocks, panel, next_panel, x, first, outputs);
    }
    if constexpr (quantises_activations(F))
        byte_tile<F, T>(blocks, panel, next_panel, x, first, outputs);
    else
        float_tile<F, T>(blocks, panel, next_panel, x, first, outputs);
}

}  // namespace

void panel_tile(Format format, size_t blocks, const uint8_t* panel, const uint8_t* next_panel, const Activations& x,
                size_t first, size_t tokens, float (*outputs)[kPanelOutputs]) {
    switch (format) {
        case Format::f32:
            return tile_of<Format::f32>(tokens, blocks, panel, next_panel, x, first, outputs);
        case Format::f16:
            return tile_of<Format::f16>(tokens, blocks, panel, next_panel, x, first, outputs);
        case Format::bf16:
            return tile_of<Format::bf16>(tokens, blocks, panel, next_panel, x, first, outputs);
        case Format::q4_0:
            return tile_of<Format::q4_0>(tokens, blocks, panel, next_panel, x, first, outputs);
        case Format::q4_1:
            return tile_of<Format::q4_1>(tokens, blocks, panel, next_panel, x, first, outputs);
        case Format::q8_0:
            return tile_of<Format::q8_0>(tokens, blocks, panel, next_panel, x, first, outputs);
        default:
            return;  // blocks of 256 have no panels
    }
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
    for (size_t p = task * panels_per_task_; p < end; ++p) {
        const size_t first = p * kPanelOutputs, count = std::min(kPanelOutputs, w.out - first);
        multiply_panel(w, p, w.panel(p + 1 < panels_ ? p + 1 : p), x_, call_.tokens,
                       [&](size_t t, const float* outputs) {
                           std::memcpy(call_.y + static_cast<ptrdiff_t>(t) * call_.y_stride + first, outputs,
                                       count * sizeof(float));
                       });
    }
}

void linear_panels(const LinearPanels& a) {
    const LinearPanelsTasks tasks(a);
    const bool is_small = a.tokens * a.w.blocks() * kBlockInputs < (size_t{1} << 16);  // not worth waking workers
    parallel_for(tasks.read_count(), is_small ? 1 : a.threads, [&](size_t token) { tasks.read(token); });
    parallel_for(tasks.multiply_count(), a.threads, [&](size_t task) { tasks.multiply(task); });
}

}  // namespace decodestep::DECODESTEP_ISA
