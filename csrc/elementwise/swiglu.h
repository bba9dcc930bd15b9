// y = gate / (1 + e^-gate) * up, element by element, in float32.
#pragma once

#include <cstddef>

#include "core/isa.h"

namespace decodestep {

struct Swiglu {
    const float *gate, *up;
    ptrdiff_t gate_stride, up_stride;
    size_t rows, width;
    float* y;
    ptrdiff_t y_stride;
    int threads;
};

DECODESTEP_KERNEL(vectors, swiglu, Swiglu)

}  // namespace decodestep
