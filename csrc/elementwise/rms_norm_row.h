// The RMS norm of one row, for kernels that process its values further.
#pragma once

#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {

// values: how many of the row's values are no padding, which is zeros.
inline float root_mean_square(const float* x, size_t width, float eps, size_t values) {
    f32x16 squares = broadcast(0.0f);
    size_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
        const f32x16 v = load(x + i);
        squares = fma(v, v, squares);
    }
    if (i < width) {
        const f32x16 v = load_partial(x + i, width - i);
        squares = fma(v, v, squares);
    }
    return __builtin_sqrtf(sum(squares) * (1.0f / static_cast<float>(values)) + eps);
}

inline float root_mean_square(const float* x, size_t width, float eps) {
    return root_mean_square(x, width, eps, width);
}

DECODESTEP_INLINE f32x16 normed(f32x16 x, f32x16 rms, f32x16 gamma) { return x / rms * gamma; }

}  // namespace decodestep::DECODESTEP_BUILD
