// The sums of a tile in registers.
#pragma once

#include "linear/linear_panels.h"
#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {

// The float sums of T tokens and 16 or 32 outputs.
template <int T, int V>
using FloatSums = f32x16[T][V];

template <int T, int V>
DECODESTEP_INLINE void clear(FloatSums<T, V>& sums) {
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sums[t][v] = broadcast(0.0f);
}

template <int T, int V>
DECODESTEP_INLINE void load_outputs(const float (*outputs)[kPanelOutputs], size_t first_v, FloatSums<T, V>& y) {
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) y[t][v] = load(outputs[t] + kLanes * (first_v + v));
}
template <int T, int V>
DECODESTEP_INLINE void store_outputs(const FloatSums<T, V>& y, size_t first_v, float (*outputs)[kPanelOutputs]) {
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) store(outputs[t] + kLanes * (first_v + v), y[t][v]);
}

}  // namespace decodestep::DECODESTEP_BUILD
