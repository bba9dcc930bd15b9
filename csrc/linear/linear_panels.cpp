#include "linear/linear_panels.h"

#include <algorithm>
#include <vector>

#include "core/parallel.h"
#include "linear/panel_product.h"

namespace decodestep::DECODESTEP_ISA {
namespace {

constexpr bool is_nibbles(Format f) { return f == Format::q4_0 || f == Format::q4_1; }

// What an unsigned value stands for is that much less.
constexpr int offset_of(Format f) { return f == Format::q4_0 ? 8 : f == Format::q8_0 ? kByteOffset : 0; }

constexpr size_t scales_at(Format f) { return is_nibbles(f) ? 512 : 1024; }

// How far ahead memory is asked for: panels are too short for the hardware to find its stride in each.
constexpr size_t kAheadBytes = 8192;

template <Format F>
class Ahead {
  public:
    Ahead(const uint8_t* panel, const uint8_t* next, size_t blocks)
        : panel_(panel), next_(next), blocks_(blocks), distance_(kAheadBytes / kBytes) {
        if (distance_ > blocks) distance_ = blocks;
    }
    DECODESTEP_INLINE void at(size_t block) const {
        if (!next_) return;
        const size_t b = block + distance_;
        prefetch(b < blocks_ ? panel_ + b * kBytes : next_ + (b - blocks_) * kBytes, kBytes);
    }

  private:
    static constexpr size_t kBytes = panel_block_bytes(F);
    const uint8_t *panel_, *next_;
    size_t blocks_, distance_;
};

// 32 outputs of T tokens, of which each keeps the sums of a block in 32 lanes of integers.
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
                const i8x4 four = broadcast_quad(x + t * stride + 4 * j);
                sums[t][0] = dot_bytes(sums[t][0], w0, four);
                sums[t][1] = dot_bytes(sums[t][1], w1, four);
            }
        }
    }
}

// Outputs of T tokens += the products of their block numbers at[t] of `parts` with the panel's block p.
template <Format F, int T>
DECODESTEP_INLINE void add_block(const uint8_t* p, const ByteBlocks& parts, size_t at, size_t stride,
                                 f32x16 (&y)[T][2]) {
    i32x16 sums[T][2];
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t)
        sums[t][0] = sums[t][1] = broadcast_int(offset_of(F) ? -offset_of(F) * parts.sum[at + t * stride] : 0);
    block_sums<F, T>(p, parts.bytes + kBlockInputs * at, kBlockInputs * stride, sums);
    const f32x16 scale0 = from_f16(p + scales_at(F)), scale1 = from_f16(p + scales_at(F) + 32);
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) {
        const f32x16 unit = broadcast(parts.unit[at + t * stride]);
        y[t][0] = fma(scale0 * unit, to_float(sums[t][0]), y[t][0]);
        y[t][1] = fma(scale1 * unit, to_float(sums[t][1]), y[t][1]);
    }
}

// Adds the products of the rests of T tokens, which are of the same block.
template <Format F, int T>
void add_rest(const uint8_t* p, const Activations& x, size_t first, float (*outputs)[kPanelOutputs]) {
    f32x16 y[T][2];
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) {
        y[t][0] = load(outputs[t]);
        y[t][1] = load(outputs[t] + kLanes);
    }
    add_block<F, T>(p, x.rest, first, 1, y);
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) {
        store(outputs[t], y[t][0]);
        store(outputs[t] + kLanes, y[t][1]);
    }
}

// Of a panel that has just been read. Tokens mostly have their outliers in the same block.
template <Format F, int T>
void add_rests(const uint8_t* panel, const Activations& x, size_t first, float (*outputs)[kPanelOutputs]) {
    if (x.blocks() == 0) return;
    const int32_t* block = x.rest_block + first;
    if (std::all_of(block + 1, block + T, [&](int32_t other) { return other == block[0]; }))
        return add_rest<F, T>(panel + block[0] * panel_block_bytes(F), x, first, outputs);
    for (size_t t = 0; t < T; ++t) add_rest<F, 1>(panel + block[t] * panel_block_bytes(F), x, first + t, outputs + t);
}

template <Format F, int T>
void byte_tile(size_t blocks, const uint8_t* panel, const uint8_t* next, const Activations& x, size_t first,
               float (*outputs)[kPanelOutputs]) {
    const Ahead<F> ahead(panel, next, blocks);
    const uint8_t* p = panel;
    f32x16 y[T][2];
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) y[t][0] = y[t][1] = broadcast(0.0f);
    size_t at = first * x.blocks();
    for (size_t b = 0; b < blocks; ++b, ++at, p += panel_block_bytes(F)) {
        if constexpr (F == Format::q4_1) {
            const f32x16 least0 = from_f16(p + 576), least1 = from_f16(p + 608);
#pragma GCC unroll 6
            for (int t = 0; t < T; ++t) {
                const f32x16 total = broadcast(x.total[at + t * x.blocks()]);
                y[t][0] = fma(least0, total, y[t][0]);
                y[t][1] = fma(least1, total, y[t][1]);
            }
        }
        add_block<F, T>(p, x.rounded, at, x.blocks(), y);
        ahead.at(b);
    }
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) {
        store(outputs[t], y[t][0]);
        store(outputs[t] + kLanes, y[t][1]);
    }
    add_rests<F, T>(panel, x, first, outputs);
}

template <Format F>
DECODESTEP_INLINE f32x16 widened(const uint8_t* p) {
    if constexpr (F == Format::f32) return load(reinterpret_cast<const float*>(p));
    if constexpr (F == Format::f16) return from_f16(p);
    if constexpr (F == Format::bf16) return from_bf16(p);
}

template <Format F, int T>
void float_tile(size_t blocks, const uint8_t* panel, const uint8_t* next, const Activations& x, size_t first,
                float (*outputs)[kPanelOutputs]) {
    constexpr size_t kRow = panel_block_bytes(F) / kBlockInputs;
    const Ahead<F> ahead(panel, next, blocks);
    const float* values = x.values + first * x.in;
    const uint8_t* p = panel;
    f32x16 y[T][2];
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) y[t][0] = y[t][1] = broadcast(0.0f);
    for (size_t b = 0; b < blocks; ++b, values += kBlockInputs) {
        ahead.at(b);
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

template <Format F, int T = 1>
void tile_of(size_t tokens, size_t blocks, const uint8_t* panel, const uint8_t* next, const Activations& x,
             size_t first, float (*outputs)[kPanelOutputs]) {
    if constexpr (T < kTileTokens) {
        if (tokens > T) return tile_of<F, T + 1>(tokens, blocks, panel, next, x, first, outputs);
    }
    if constexpr (reads_bytes(F))
        byte_tile<F, T>(blocks, panel, next, x, first, outputs);
    else
        float_tile<F, T>(blocks, panel, next, x, first, outputs);
}

}  // namespace

void panel_tile(Format format, size_t blocks, const uint8_t* panel, const uint8_t* next, const Activations& x,
                size_t first, size_t tokens, float (*outputs)[kPanelOutputs]) {
    switch (format) {
        case Format::f32:
            return tile_of<Format::f32>(tokens, blocks, panel, next, x, first, outputs);
        case Format::f16:
            return tile_of<Format::f16>(tokens, blocks, panel, next, x, first, outputs);
        case Format::bf16:
            return tile_of<Format::bf16>(tokens, blocks, panel, next, x, first, outputs);
        case Format::q4_0:
            return tile_of<Format::q4_0>(tokens, blocks, panel, next, x, first, outputs);
        case Format::q4_1:
            return tile_of<Format::q4_1>(tokens, blocks, panel, next, x, first, outputs);
        case Format::q8_0:
            return tile_of<Format::q8_0>(tokens, blocks, panel, next, x, first, outputs);
        default:
            return;  // no panels are made of blocks of 256
    }
}

void linear_panels(const LinearPanels& a) {
    const size_t in = a.w.blocks() * kBlockInputs, panels = a.w.count();
    const bool as_bytes = reads_bytes(a.w.format);
    std::vector<float> space(Activations::floats(a.tokens, in, !as_bytes, as_bytes));
    const Activations x = Activations::in_space(space.data(), a.tokens, in, !as_bytes, as_bytes);
    parallel_for(a.tokens, a.tokens * in < (size_t{1} << 16) ? 1 : a.threads,
                 [&](size_t t) { put_row(x, t, a.x + static_cast<ptrdiff_t>(t) * a.x_stride, a.w.in); });
    // A task is about 10 microseconds of work.
    const size_t work = in * kPanelOutputs * a.tokens / 8 + 1, share = (size_t{1} << 18) / work + 1;
    parallel_for((panels + share - 1) / share, a.threads, [&](size_t task) {
        const size_t end = (task + 1) * share < panels ? (task + 1) * share : panels;
        for (size_t p = task * share; p < end; ++p) {
            const size_t first = p * kPanelOutputs, left = a.w.out - first;
            times_panel(a.w, p, a.w.panel(p + 1 < panels ? p + 1 : p), x, a.tokens,
                        [&](size_t t, const float* outputs) {
                            std::memcpy(a.y + static_cast<ptrdiff_t>(t) * a.y_stride + first, outputs,
                                        (left < kPanelOutputs ? left : kPanelOutputs) * sizeof(float));
                        });
        }
    });
}

}  // namespace decodestep::DECODESTEP_ISA
