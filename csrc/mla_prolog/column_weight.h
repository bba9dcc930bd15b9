// Weights that store the values of one input together: matrices (inputs, outputs) and NZ; and the same values packed in
// panels. GGUF blocks, which store the values of one output together, are in linear/.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/division.h"
#include "core/half.h"
#include "core/isa.h"
#include "linear/linear_panels.h"

namespace decodestep {

enum class WeightType { f32, bf16, i8, f8 };

constexpr size_t value_bytes(WeightType value) {
    return value == WeightType::f32 ? 4 : value == WeightType::bf16 ? 2 : 1;
}

// The type of which panels are made and in which the tokens are multiplied: all of an eight-bit float fits into a
// bfloat16.
constexpr WeightType panel_type(WeightType value) { return value == WeightType::f8 ? WeightType::bf16 : value; }

// Bytes of a panel: 32 outputs, as dense formats have them, with inputs padded to blocks. Of float32 it holds the
// outputs of each input together; of bfloat16, those of each two inputs; of int8, those of each four, as bytes that are
// 128 above the values.
constexpr size_t panel_bytes(WeightType value, size_t in) {
    return ceil_div(in, kBlockInputs) * kBlockInputs * kPanelOutputs * value_bytes(panel_type(value));
}
constexpr size_t panel_count(size_t out) { return ceil_div(out, kPanelOutputs); }

enum class ColumnLayout {
    rows,   // a matrix: value (k, n) is element k * row_stride + n
    nz,     // n / width * panel_stride + k * row_stride + n % width, in panels of `width` outputs
    packed  // panel after panel of panel_bytes(value, in); inputs and outputs padded with zeros to blocks and panels;
            // not f8
};

// A weight (in, out).
struct ColumnWeight {
    const void* data;
    WeightType value;
    size_t in, out;
    ColumnLayout layout;
    size_t width, panel_stride, row_stride;  // in values; for `rows` the width is `out`, for `packed` none is read
    const uint8_t* exponents = nullptr;  // of f8: [out, in / 32], the powers of two of its blocks of inputs; null: 1

    constexpr bool packed() const { return layout == ColumnLayout::packed; }
};

// The panels that are packed at once, at most: several, so that long stretches of a matrix's rows are read.
constexpr size_t kColumnPanels = 16;

// Blocks [first_block, first_block + blocks) of outputs [first, last), of at most kColumnPanels panels, as panels that
// begin with output `first`, `stride` bytes apart.
struct PackColumns {
    ColumnWeight from;  // not packed
    size_t first, last, first_block, blocks;
    uint8_t* to;  // aligned to words
    size_t stride;
};

DECODESTEP_KERNEL(vectors, pack_columns, PackColumns)

// Sums of int8 products, as int32 in the memory of float32: see dense_panels.
struct ByteColumns {
    const uint8_t *panel, *next_panel;
    size_t panels, panel_stride, blocks;
    const int8_t* x;        // DenseRows of `x_tokens`
    const int32_t* x_sums;  // of each token's values
    size_t x_tokens, first, tokens;
    float (*outputs)[kPanelOutputs];
    size_t first_block;
    bool adds;
};

DECODESTEP_KERNEL(bytes, multiply_byte_columns, ByteColumns)

// The most bytes that a value of a token takes where it is multiplied by bfloat16: a build without products of these
// keeps it as float32.
constexpr size_t kBf16TokenBytes = 4;

// Stores a token's values where multiply_bf16_columns reads them.
struct Bf16Token {
    void* x;  // DenseRows of `x_tokens`, in the form of the build
    size_t x_tokens, token;
    const Bf16* row;
    size_t in;
};

DECODESTEP_KERNEL(pairs, read_bf16_token, Bf16Token)

struct Bf16Columns {
    const uint8_t *panel, *next_panel;
    size_t panels, panel_stride, blocks;
    void* x;  // see Bf16Token
    size_t x_tokens, first, tokens;
    float (*outputs)[kPanelOutputs];
    size_t first_block;
    bool adds;
};

DECODESTEP_KERNEL(pairs, multiply_bf16_columns, Bf16Columns)

}  // namespace decodestep
