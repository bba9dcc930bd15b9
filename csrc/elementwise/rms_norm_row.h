// The norm of one row, for kernels that process its values further.
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

// What a norm subtracts from the values of a row, and what it divides them by: 0 and the root mean square, or where it
// is centred, the mean and the standard deviation.
struct RowNorm {
    f32x16 mean, root;

    DECODESTEP_INLINE f32x16 operator()(f32x16 x, f32x16 gamma) const { return (x - mean) / root * gamma; }
};

// width: a multiple of kLanes.
inline RowNorm row_norm(const float* x, size_t width, float eps, bool centred) {
    if (!centred) return {broadcast(0.0f), broadcast(root_mean_square(x, width, eps))};
    const float share = 1.0f / static_cast<float>(width);
    f32x16 total = broadcast(0.0f), squares = broadcast(0.0f);
    for (size_t i = 0; i < width; i += kLanes) total = total + load(x + i);
    const f32x16 mean = broadcast(sum(total) * share);
    for (size_t i = 0; i < width; i += kLanes) {
        const f32x16 v = load(x + i) - mean;
        squares = fma(v, v, squares);
    }
    return {mean, broadcast(__builtin_sqrtf(sum(squares) * share + eps))};
}

DECODESTEP_INLINE f32x16 normed(f32x16 x, f32x16 rms, f32x16 gamma) { return x / rms * gamma; }

}  // namespace decodestep::DECODESTEP_BUILD
