// Products of float32 activations with panels of dense formats.
#pragma once

#include "linear/activations.h"
#include "linear/panel_prefetcher.h"
#include "linear/panel_tile.h"

namespace decodestep::DECODESTEP_BUILD {

template <Format F>
DECODESTEP_INLINE f32x16 widened(const uint8_t* p) {
    if constexpr (F == Format::f32) return load(reinterpret_cast<const float*>(p));
    if constexpr (F == Format::f16) return from_f16(p);
    if constexpr (F == Format::bf16) return from_bf16(p);  // another format gives no value: it does not compile
}

// y += a block of 32 inputs times the same inputs of T tokens, `stride` floats apart. ahead: the address of as many
// bytes as the block has, which are prefetched along with the inputs; or null.
template <Format F, int T>
DECODESTEP_INLINE void add_float_block(const uint8_t* block, const float* values, size_t stride, f32x16 (&y)[T][2],
                                       const uint8_t* ahead = nullptr) {
    constexpr size_t kRow = panel_block_bytes(F) / kBlockInputs;
    for (size_t k = 0; k < kBlockInputs; ++k, block += kRow) {
        if (ahead) prefetch(ahead + k * kRow, kRow);
        const f32x16 w0 = widened<F>(block), w1 = widened<F>(block + kRow / 2);
#pragma GCC unroll 6
        for (int t = 0; t < T; ++t) {
            const f32x16 value = broadcast(values[t * stride + k]);
            y[t][0] = fma(w0, value, y[t][0]);
            y[t][1] = fma(w1, value, y[t][1]);
        }
    }
}

// The T tokens of a tile as float32 times a panel.
template <Format F, int T>
void float_tile(const PanelTile& a) {
    const PanelPrefetcher<F> prefetcher(a.panel, a.next_panel, a.blocks);
    const float* values = a.x.values + a.first * a.x.in;
    f32x16 y[T][2];
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) y[t][0] = y[t][1] = broadcast(0.0f);
    for (size_t b = 0; b < a.blocks; ++b) {
        prefetcher.advance(b);
        add_float_block<F, T>(a.panel + b * panel_block_bytes(F), values + b * kBlockInputs, a.x.in, y);
    }
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) {
        store(a.outputs[t], y[t][0]);
        store(a.outputs[t] + kLanes, y[t][1]);
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
