// Rotary position embedding: rotates pairs of values. Included by kernels that are compiled per instruction set.
#pragma once

#include "simd/rounding.h"

namespace decodestep::DECODESTEP_BUILD {

// Eight adjacent pairs, each rotated by its own sine and cosine.
DECODESTEP_INLINE f32x16 rotate_pairs(f32x16 values, const float* sin, const float* cos) {
    return subtract_add(values * load_twice(cos), swap_pairs(values) * load_twice(sin));
}

// From adjacent pairs to halves: pair j becomes out[j] and out[half + j], which have a sine and cosine each.
template <class Real>
DECODESTEP_INLINE void rotate_to_halves(const float* x, size_t half, const float* sin, const float* cos, Real* out) {
    for (size_t j = 0; j < half; ++j) {
        const float even = x[2 * j], odd = x[2 * j + 1];
        convert(even * cos[j] - odd * sin[j], out + j);
        convert(odd * cos[half + j] + even * sin[half + j], out + half + j);
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
