// y = x W for a weight whose values of one input lie together: (inputs, outputs) as it is, NZ, or packed into panels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/isa.h"

namespace decodestep {

enum class WeightType { f32, bf16, i8 };

constexpr size_t value_bytes(WeightType type) { return type == WeightType::f32 ? 4 : type == WeightType::bf16 ? 2 : 1; }

// Inputs are multiplied in groups of four bytes, outputs in panels of 64.
constexpr size_t kGroupBytes = 4, kPanel = 64, kPanelRow = kPanel * kGroupBytes;

constexpr size_t group_count(WeightType value, size_t in) {
    return (in * value_bytes(value) + kGroupBytes - 1) / kGroupBytes;
}

// A weight (in, out).
//
// Packed, it is one panel after the other, each a row of 64 groups for every group of inputs; what inputs and outputs
// lack to whole groups and panels is zeros. A panel of i8 has a row of 64 int32 before them: -128 times the sum of each
// output's weights, for machines that multiply int8 by unsigned bytes.
struct Columns {
    const void* data;  // null: the weight is not given
    WeightType value;
    size_t in, out;
    bool packed;
    // Not packed, value (k, n) lies at n / width * panel_stride + k * row_stride + n % width: one panel as wide as the
    // matrix, or those of NZ.
    size_t width, panel_stride, row_stride;
};

constexpr size_t panel_count(size_t out) { return (out + kPanel - 1) / kPanel; }
constexpr size_t panel_bytes(WeightType value, size_t in) {
    return (group_count(value, in) + (value == WeightType::i8)) * kPanelRow;
}

struct PackPanels {
    Columns from;  // not packed
    uint8_t* to;   // panel_count(out) * panel_bytes(value, in) bytes
    int threads;
};

DECODESTEP_KERNEL(pack_panels, PackPanels)

// The sums for outputs [first, last), and for the other outputs of their panels: float32, or for i8 int32 in their
// place. Their bits depend neither on the other tokens and outputs nor on how the weight is stored.
struct Product {
    const uint8_t* x;  // rows of the weight's type of value, continued in zeros to whole groups
    size_t x_stride;   // bytes
    size_t tokens;
    Columns w;
    size_t first, last;
    float* y;                    // [tokens, sums_width(w, first, last)]; output `first` is at sums_before(w, first)
    size_t y_stride;             // floats
    uint8_t* scratch;            // kProductScratch bytes
    const void* next = nullptr;  // of a packed weight: what the caller reads after it, asked for at its end
    // Of a bfloat16 weight, if given: where the sums go rounded, laid out as y, which has only the partial ones then.
    uint16_t* rounded = nullptr;
};

constexpr size_t kProductScratch = 72 << 10;
constexpr size_t sums_before(const Columns& w, size_t first) { return w.packed ? first % kPanel : 0; }
constexpr size_t sums_width(const Columns& w, size_t first, size_t last) {
    return panel_count(last - first + sums_before(w, first)) * kPanel;
}

DECODESTEP_KERNEL(multiply, Product)

}  // namespace decodestep
