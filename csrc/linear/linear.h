// y = x W for float32 x and a weight kept as rows of one output each, in a GGUF block format.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/isa.h"

namespace decodestep {

// The numbers are shared with src/decodestep/weights/packed.py.
enum class Format : int { f32 = 0, f16 = 1, bf16 = 2, q4_0 = 3, q4_1 = 4, q8_0 = 5, q4_k = 6, q5_k = 7, q6_k = 8 };

// Bytes of a row of `values` weights; 0 where the format does not hold rows of that length.
constexpr size_t row_bytes(Format format, size_t values) {
    switch (format) {
        case Format::f32:
            return values * 4;
        case Format::f16:
        case Format::bf16:
            return values * 2;
        case Format::q4_0:
            return values % 32 ? 0 : values / 32 * 18;
        case Format::q4_1:
            return values % 32 ? 0 : values / 32 * 20;
        case Format::q8_0:
            return values % 32 ? 0 : values / 32 * 34;
        case Format::q4_k:
            return values % 256 ? 0 : values / 256 * 144;
        case Format::q5_k:
            return values % 256 ? 0 : values / 256 * 176;
        case Format::q6_k:
            return values % 256 ? 0 : values / 256 * 210;
    }
    return 0;
}

// A weight: `out` rows of `in` values, `stride` bytes apart.
struct Rows {
    const uint8_t* data;  // null: the weight is not given
    size_t stride, in, out;
    Format format;
};

// y[t, n] = sum over k of x[t, k] * w[n, k], k ascending in 16 lanes that are folded at the end: the bits of a result
// depend neither on the other tokens and outputs of the call nor on the thread count.
struct Linear {
    const float* x;
    ptrdiff_t x_stride;  // floats from one token to the next
    size_t tokens, in, out;
    const uint8_t* w;
    size_t w_stride;  // bytes from one output's row to the next
    Format format;
    float* y;
    ptrdiff_t y_stride;
    int threads;
};

DECODESTEP_KERNEL(linear, Linear)

// values[i] = row `ids[i]` of the weight as float32: an embedding look-up.
struct TakeRows {
    const uint8_t* w;
    size_t w_stride, in;
    Format format;
    const int64_t* ids;
    size_t count;
    float* values;
};

DECODESTEP_KERNEL(take_rows, TakeRows)

}  // namespace decodestep
