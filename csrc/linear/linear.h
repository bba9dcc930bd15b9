// y = x W for float32 x and a weight kept in the rows of its file: one row per output, in a GGUF block format.
//
// There are three products of activations with a weight:
//   linear (this file) reads a row as the file holds it, widens it to float32 and multiplies in float32. It needs no
//     packing and has the accuracy of the file, so it serves `dtype="float32"` models and weights that are multiplied
//     once. All formats have it.
//   linear_panels reads a copy of the weight in panels of 32 outputs, one stream of memory, and multiplies 8-bit
//     activations by the blocks as integers: what a decoder uses, where a weight is read at every step.
//   prolog_panels (csrc/mla_prolog) reads panels of 64 columns with the roundings of the Ascend operator: bfloat16
//     pairs and int8 with a scale per output, formats that no GGUF block has.
// They share the tasks' size and the vector primitives, not the inner loops: each format needs another order of bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/isa.h"

namespace decodestep {

// The numbers are shared with src/decodestep/weights/packed.py.
enum class Format : int {
    f32 = 0,
    f16 = 1,
    bf16 = 2,
    q4_0 = 3,
    q4_1 = 4,
    q8_0 = 5,
    q4_k = 6,
    q5_k = 7,
    q6_k = 8,
    q5_0 = 9,
    q5_1 = 10,
    iq4_nl = 11,
    iq4_xs = 12,
    mxfp4 = 13
};
constexpr int kFormats = 14;

// The values of one block of a format, and its bytes in a row.
struct BlockSize {
    size_t values, bytes;
};
constexpr BlockSize kBlockSizes[kFormats] = {
    {1, 4},      // f32
    {1, 2},      // f16
    {1, 2},      // bf16
    {32, 18},    // q4_0
    {32, 20},    // q4_1
    {32, 34},    // q8_0
    {256, 144},  // q4_k
    {256, 176},  // q5_k
    {256, 210},  // q6_k
    {32, 22},    // q5_0
    {32, 24},    // q5_1
    {32, 18},    // iq4_nl
    {256, 136},  // iq4_xs
    {32, 17},    // mxfp4
};

// Bytes of a row of `values` weights; 0 if a row of that format cannot have that length.
constexpr size_t row_bytes(Format format, size_t values) {
    const BlockSize block = kBlockSizes[static_cast<int>(format)];
    return values % block.values ? 0 : values / block.values * block.bytes;
}

// A weight: `out` rows of `in` values, `stride` bytes apart.
struct RowWeight {
    const uint8_t* data;  // null: the weight is not given
    size_t stride, in, out;
    Format format;

    const uint8_t* row(size_t n) const { return data + n * stride; }
};

// y[t, n] = sum over k of x[t, k] * w[n, k]
//
// Shapes: x [tokens, w.in], y [tokens, w.out], float32; their rows may lie apart, each is contiguous.
// NaN and infinities propagate as in IEEE arithmetic, those of a weight's scale included. w.in = 0 gives zeros.
// Determinism: k ascends in 16 lanes that are added at the end, so an output's bits depend neither on the other tokens
// and outputs of the call nor on the thread count.
struct Linear {
    const float* x;
    ptrdiff_t x_stride;  // floats from one token to the next
    size_t tokens;
    RowWeight w;
    float* y;
    ptrdiff_t y_stride;
    int threads;
};

DECODESTEP_VECTOR_KERNEL(linear, Linear)

// Products of each head with rows of its own. Of the w.out / heads rows of a head, those of [first, first + count):
//   y[t, h, n] = sum over k of x[t, h, k] * w[h, n, k], or turned: y[t, h, k] = sum over n of x[t, h, n] * w[h, n, k]
//
// Shapes: x [tokens, heads, w.in], turned [tokens, heads, count], float32, contiguous along the last axis;
// y [tokens, heads, count], turned [tokens, heads, w.in], packed.
// Determinism: k as in Linear, n ascends: an output's bits depend neither on the other tokens nor on the thread count.
struct HeadProducts {
    const float* x;
    ptrdiff_t x_stride, x_head_stride;  // floats from one token and from one head to the next
    size_t tokens, heads;
    RowWeight w;
    size_t first, count;
    bool turned;
    float* y;
    int threads;
};

DECODESTEP_VECTOR_KERNEL(head_products, HeadProducts)

// values[i] = row ids[i] of the weight, widened to float32: an embedding look-up.
struct GatherRows {
    RowWeight w;
    const int64_t* ids;  // [count], each in [0, w.out)
    size_t count;
    float* values;  // [count, w.in]
    int threads;
};

DECODESTEP_VECTOR_KERNEL(gather_rows, GatherRows)

}  // namespace decodestep
