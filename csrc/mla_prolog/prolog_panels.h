// y = x W for a weight that stores the values of one input together: a matrix (inputs, outputs), NZ, or packed panels.
// GGUF blocks, which store the values of one output together, are in linear/.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/division.h"
#include "core/isa.h"

namespace decodestep {

enum class WeightType { f32, bf16, i8 };

constexpr size_t value_bytes(WeightType value) {
    return value == WeightType::f32 ? 4 : value == WeightType::bf16 ? 2 : 1;
}

// Inputs are multiplied in groups of four bytes (one float32, two bfloat16, four int8), outputs in panels of 64. A
// panel row is one group of inputs of all outputs of a panel.
constexpr size_t kGroupBytes = 4, kPanel = 64, kPanelRow = kPanel * kGroupBytes;

constexpr size_t group_count(WeightType value, size_t in) { return ceil_div(in * value_bytes(value), kGroupBytes); }
constexpr size_t panel_count(size_t out) { return ceil_div(out, kPanel); }

// Bytes of a packed panel: its rows, and for i8 first a row of 64 int32: -128 times the sum of each output's weights,
// at which the sums begin on machines that multiply int8 by unsigned bytes.
constexpr size_t panel_bytes(WeightType value, size_t in) {
    return (group_count(value, in) + (value == WeightType::i8)) * kPanelRow;
}

enum class ColumnLayout {
    rows,   // a matrix: value (k, n) is element k * row_stride + n
    nz,     // n / width * panel_stride + k * row_stride + n % width, in panels of `width` outputs
    packed  // panel after panel of panel_bytes(value, in); inputs and outputs padded with zeros to groups and panels
};

// A weight (in, out).
struct ColumnWeight {
    const void* data;
    WeightType value;
    size_t in, out;
    ColumnLayout layout;
    size_t width, panel_stride, row_stride;  // in values; for `rows` the width is `out`, for `packed` none is read

    constexpr bool packed() const { return layout == ColumnLayout::packed; }
};

struct PackPanels {
    ColumnWeight from;  // not packed
    uint8_t* to;        // panel_count(out) * panel_bytes(value, in) bytes
    int threads;
};

DECODESTEP_KERNEL(bytes, pack_panels, PackPanels)

// y[t, n] = sum over k of x[t, k] * w[k, n] for outputs n in [first, last)
//
// Shapes: x [tokens, w.in] of the weight's type; y [tokens, sums_width(w, first, last)], float32, or for i8 int32 in
// the memory of float32; output `first` is column sums_before(w, first). Reads: x rows up to a multiple of four bytes;
// what follows the last input must be zeros. Writes: all of y, columns of other outputs than [first, last) included;
// with `rounded`, y holds partial sums only. NaN: as IEEE. Determinism: the bits depend neither on the other tokens and
// outputs nor on the weight's layout.
struct ColumnProduct {
    const uint8_t* x;
    size_t x_stride;  // bytes
    size_t tokens;
    ColumnWeight w;
    size_t first, last;
    float* y;
    size_t y_stride;              // floats
    uint8_t* scratch;             // kProductScratch bytes
    const void* next = nullptr;   // with packed weights: what the caller reads afterwards, prefetched at the end
    uint16_t* rounded = nullptr;  // with bf16 weights: receives the sums as bfloat16, laid out as y
};

constexpr size_t kProductScratch = 72 << 10;
constexpr size_t sums_before(const ColumnWeight& w, size_t first) { return w.packed() ? first % kPanel : 0; }
constexpr size_t sums_width(const ColumnWeight& w, size_t first, size_t last) {
    return panel_count(last - first + sums_before(w, first)) * kPanel;
}

DECODESTEP_KERNEL(bytes, multiply_columns, ColumnProduct)
// Called by `multiply_columns` for a bfloat16 weight with at least one input.
DECODESTEP_KERNEL(pairs, multiply_bf16_columns, ColumnProduct)

}  // namespace decodestep
