// y = x W for a weight whose values of one input lie together: (inputs, outputs) as it is, or cut into panels (NZ).
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.h"

namespace decodestep {

// The type of a weight's values; the numbers are shared with src/decodestep/ops/mla_prolog/cpu.py.
enum class Value : int { f32 = 0, bf16 = 1, i8 = 2 };

// y[b, t, n] = sum over k of x[b, t, k] * w[b, k, n]. The sum runs in float32, k ascending in blocks that are added up
// in order; for i8, where x holds integers in [-128, 127] too and `in` is below 2^17, it is exact and rounded once. The
// bits of a result depend neither on the other tokens and outputs of the call nor on the thread count.
struct Columns {
    const float* x;
    ptrdiff_t x_batch, x_token;  // floats from one to the next; the values of a token lie together
    size_t batch, tokens, in, out;
    const void* w;
    Value value;
    // Value (k, n) lies at n / panel * panel_stride + k * row_stride + n % panel; one panel where W is not cut. Panels
    // that are not the last hold a multiple of 16 outputs.
    size_t panel, panel_stride, row_stride, w_batch;
    float* y;
    ptrdiff_t y_batch, y_token;
    int threads;
};

DECODESTEP_KERNEL(columns, Columns)

}  // namespace decodestep
