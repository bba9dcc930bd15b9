// Products of many tokens as float32 with a panel of a dense format, whose weights are widened once for all of them.
#pragma once

#include "linear/float_sums.h"
#include "linear/float_tile.h"
#include "linear/panel_product.h"

namespace decodestep::DECODESTEP_BUILD {

// A panel is widened to float32 a stretch of inputs at a time, which takes half of the L1 cache. Float32 is read in
// place.
constexpr size_t kWidenedBlocks = 4;

// The smallest number of tokens for which widening first is faster.
constexpr size_t kWidenedFrom = kManyRegisters ? 16 : 7;

// The tokens and vectors of sixteen outputs of a tile, whose sums stay in registers beside a vector of weights: enough
// independent sums to hide the latency of an addition.
constexpr int kWidenedTokens = 6, kWidenedVectors = kManyRegisters ? 2 : 1;

// outputs += `inputs` inputs of T tokens, `stride` floats apart, times their weights, for the outputs from 16v on.
template <int T>
void widened_tile(const float (*weights)[kPanelOutputs], size_t inputs, size_t v, const float* values, size_t stride,
                  float (*outputs)[kPanelOutputs]) {
    constexpr int V = kWidenedVectors;
    FloatSums<T, V> y;
    load_outputs<T, V>(outputs, v, y);
    for (size_t k = 0; k < inputs; ++k) {
        f32x16 w[V];
#pragma GCC unroll 2
        for (int i = 0; i < V; ++i) w[i] = load(weights[k] + kLanes * (v + i));
#pragma GCC unroll 6
        for (int t = 0; t < T; ++t) {
            const f32x16 value = broadcast(values[t * stride + k]);
#pragma GCC unroll 2
            for (int i = 0; i < V; ++i) y[t][i] = fma(w[i], value, y[t][i]);
        }
    }
    store_outputs<T, V>(y, v, outputs);
}

template <Format F>
void widened_tiles(const PanelTile& a) {
    constexpr size_t kRow = panel_block_bytes(F) / kBlockInputs;  // bytes of an input's weights
    alignas(64) float widened_weights[F == Format::f32 ? 1 : kWidenedBlocks * kBlockInputs][kPanelOutputs];
    const PanelPrefetcher<F> prefetcher(a.panel, a.next_panel, a.blocks);
    std::memset(a.outputs, 0, a.tokens * sizeof *a.outputs);
    for (size_t b = 0; b < a.blocks; b += kWidenedBlocks) {
        const size_t count = std::min(kWidenedBlocks, a.blocks - b), inputs = count * kBlockInputs;
        const uint8_t* stretch = a.panel + b * panel_block_bytes(F);
        const float (*weights)[kPanelOutputs] = widened_weights;
        if constexpr (F == Format::f32) {
            weights = reinterpret_cast<const float (*)[kPanelOutputs]>(stretch);
        } else {
            for (size_t i = 0; i < count; ++i) {
                prefetcher.advance(b + i);
                for (size_t k = i * kBlockInputs; k < (i + 1) * kBlockInputs; ++k) {
                    store(widened_weights[k], widened<F>(stretch + k * kRow));
                    store(widened_weights[k] + kLanes, widened<F>(stretch + k * kRow + kRow / 2));
                }
            }
        }
        const uint8_t* ahead = a.next_panel ? prefetcher.ahead(b + count, 0) : nullptr;
        each_constant_piece<kWidenedTokens>(a.tokens, [&]<int T>(size_t t) {
            if (ahead) prefetch_share(ahead, kWidenedBlocks * panel_block_bytes(F), t, T, a.tokens);
            const float* values = a.x.values + (a.first + t) * a.x.in + b * kBlockInputs;
            for (size_t v = 0; v < kPanelOutputs / kLanes; v += kWidenedVectors)
                widened_tile<T>(weights, inputs, v, values, a.x.in, a.outputs + t);
        });
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
