// y = x W for float32 x and a weight stored as in a GGUF file: one row per output, in blocks.
//
// There are two products of activations with a weight:
//   linear (this file) reads the rows as stored in the file, widens them to float32 and multiplies in float32. It needs
//     no packing and is as accurate as the file: for `dtype="float32"` models and weights that are multiplied once. It
//     supports all formats.
//   linear_panels reads a copy of the weight packed in panels of 32 outputs, each contiguous in memory, and multiplies
//     int8 activations by blocks as integers, float32 ones by dense weights: for decoders, which read every weight at
//     every step. mla_prolog multiplies its bfloat16 and int8 weights in panels of the same layout.
// They share the task size and the vector primitives but not the inner loops, because each needs a different byte
// order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/isa.h"
#include "linear/formats.h"

namespace decodestep {

// A weight: `out` rows of `in` values, `stride` bytes apart.
struct RowWeight {
    const uint8_t* data;  // null: the weight is not given
    size_t stride, in, out;
    Format format;

    const uint8_t* row(size_t n) const { return data + n * stride; }
};

// y[t, n] = sum over k of x[t, k] * w[n, k]
//
// Shapes: x [tokens, w.in], y [tokens, w.out], float32; rows are contiguous, with any stride between them.
// NaN and infinities propagate as in IEEE arithmetic, also those of a weight's scale. w.in = 0 gives zeros.
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

DECODESTEP_KERNEL(vectors, linear, Linear)

// Products of each token with one of the groups of rows that a weight consists of, such as the experts of a mixture:
//   y[t, n] = sum over k of x[t, k] * w[groups[t], n, k]
//
// Shapes: x [tokens, w.in], rows contiguous; y [tokens, outputs], contiguous; group g has rows [g, g + 1) * outputs.
// groups ascend, so that the rows of a group are read once. Bits: those of Linear.
struct GroupedProducts {
    const float* x;
    ptrdiff_t x_stride;
    size_t tokens;
    RowWeight w;
    const int64_t* groups;  // [tokens], each in [0, w.out / outputs)
    size_t outputs;
    float* y;
    int threads;
};

DECODESTEP_KERNEL(vectors, grouped_products, GroupedProducts)

// Products of each head with its own rows. Of the w.out / heads rows of a head, rows [first, first + count) are used:
//   y[t, h, n] = sum over k of x[t, h, k] * w[h, n, k],
//   or transposed: y[t, h, k] = sum over n of x[t, h, n] * w[h, n, k]
//
// Shapes: x [tokens, heads, w.in], transposed [tokens, heads, count], float32, contiguous along the last axis; y
// [tokens, heads, count], transposed [tokens, heads, w.in], contiguous.
// Determinism: the order of k as in Linear, n ascends: an output's bits depend neither on the other tokens nor on the
// thread count.
struct HeadProducts {
    const float* x;
    ptrdiff_t x_stride, x_head_stride;  // floats from one token and from one head to the next
    size_t tokens, heads;
    RowWeight w;
    size_t first, count;
    bool transposed;
    float* y;
    int threads;
};

DECODESTEP_KERNEL(vectors, head_products, HeadProducts)

// values[i] = row ids[i] of the weight, widened to float32: an embedding lookup.
struct GatherRows {
    RowWeight w;
    const int64_t* ids;  // [count], each in [0, w.out)
    size_t count;
    float* values;  // [count, w.in]
    int threads;
};

DECODESTEP_KERNEL(vectors, gather_rows, GatherRows)

}  // namespace decodestep
