// A short convolution of every channel. A state holds the last inputs of a row, one less than there are taps.
#pragma once

#include "core/isa.h"
#include "recurrent/state_rows.h"

namespace decodestep {

struct CausalConv1d {
    const float* x;  // [tokens, channels]
    ptrdiff_t x_stride;
    const float* weight;  // [taps, channels], the last for the newest input
    ptrdiff_t weight_stride;
    const float* bias;  // [channels], or null
    bool silu;
    size_t tokens, channels, taps;
    float* state;  // [states, taps - 1, channels], the oldest input first
    ptrdiff_t state_stride, input_stride;
    StateRows rows;
    float* y;  // [tokens, channels]
    ptrdiff_t y_stride;
    int threads;
};

DECODESTEP_KERNEL(vectors, causal_conv1d, CausalConv1d)

}  // namespace decodestep
