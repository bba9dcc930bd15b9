// y = x / sqrt(mean(x^2) + eps) * gamma * alpha, row by row, in float32.
#pragma once

#include <cstddef>

#include "core/isa.h"

namespace decodestep {

struct RmsNorm {
    const float* x;
    ptrdiff_t x_stride;
    size_t rows, width;
    const float* gamma;
    float eps, alpha;
    float* y;  // may be x
    ptrdiff_t y_stride;
    int threads;
};

DECODESTEP_KERNEL(vectors, rms_norm, RmsNorm)

}  // namespace decodestep
