// y = x W for a weight packed in panels of 32 outputs, each contiguous in memory and read from end to end.
//
// A decoder reads every weight at every step, so its time is that of reading memory. A panel interleaves the blocks of
// 32 outputs: they are read as one stream, and one instruction multiplies 4 inputs of 16 outputs as integers, for which
// the rows of `linear` would need shuffles. Packing costs one pass over the weight when a model is loaded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "core/compiler.h"
#include "core/division.h"
#include "core/isa.h"
#include "linear/linear.h"

namespace decodestep {

constexpr size_t kPanelOutputs = 32;
constexpr size_t kBlockInputs = 32;

// The layout of a panel of a quantised format: a row of blocks, inputs ascending; missing outputs of a panel are zeros.
// A block consists of `pieces` pieces, followed by `tail` bytes. A piece is 32 outputs by 32 inputs:
//   low     the lower bits of the integers. Nibbles: for j in [0, 4), for each output, four bytes: the low nibbles are
//           inputs 4j.., the high nibbles inputs 16 + 4j..
//           Bytes (Q8_0): for j in [0, 8), for each output, its values 4j to 4j + 3, plus 128
//           Two bits (Q2_K, Q3_K): for each output four bytes, bits 2j of byte e those of input 4j + e, inputs 16..
//           after all outputs' inputs 0..
//   upper   the bits above them. One (Q5, Q3_K): for each output four bytes, bit j of byte e that of input 4j + e. Two
//           (Q6_K): as two lower bits
//   scales  blocks of 32: 32 float16, or the file's bytes (MXFP4), then, if the format has them, 32 minima.
//           Blocks of 256: 32 bytes, then 32 minima; with sub-blocks of 16 values the two of an output side by side, in
//           Q2_K each with its minimum in the upper four bits
// The tail of a block of 256: its 32 scales, then, if the format has them, its 32 minima, as float16.
struct PanelLayout {
    size_t pieces = 0, low = 0, upper = 0, scales = 0, tail = 0;

    constexpr size_t piece_bytes() const { return low + upper + scales; }
    constexpr size_t block_bytes() const { return pieces * piece_bytes() + tail; }
};

// The bytes of each of a piece's scales, which are side by side where sub-blocks have 16 values.
constexpr DECODESTEP_INLINE size_t scale_bytes(Format format) {
    const size_t sub_blocks = kBlockInputs / traits(format).sub_block;
    switch (traits(format).scale) {
        case ScaleType::none:
            return 0;
        case ScaleType::f16:
            return 2 * sub_blocks;
        case ScaleType::e8m0:
        case ScaleType::u4:
        case ScaleType::u8:
        case ScaleType::i8:
            return sub_blocks;
    }
    __builtin_unreachable();
}

constexpr auto kPanelLayouts = [] {
    std::array<PanelLayout, std::size(kFormats)> layouts{};
    for (size_t i = 0; i < layouts.size(); ++i) {
        const FormatTraits& of = kFormats[i];
        if (of.is_dense()) continue;
        const size_t pieces = of.values / kBlockInputs, bit = kPanelOutputs * kBlockInputs / 8,
                     scales = kPanelOutputs * scale_bytes(static_cast<Format>(i)), numbers = of.minima ? 2 : 1;
        layouts[i] = {pieces, bit * of.low_bits, bit * of.upper_bits,
                      of.scale == ScaleType::u4 ? scales : scales * numbers,
                      pieces > 1 ? kPanelOutputs * 2 * numbers : 0};
    }
    return layouts;
}();
constexpr DECODESTEP_INLINE const PanelLayout& panel_layout(Format format) {
    return kPanelLayouts[static_cast<size_t>(format)];
}

// Whether products with panels of that format read int8 activations, with a scale for each 32 values; else float32.
constexpr DECODESTEP_INLINE bool quantises_activations(Format format) { return !traits(format).is_dense(); }

// The inputs of a block. In dense formats a weight's inputs are padded with zeros to whole blocks; in quantised formats
// they must be whole blocks.
constexpr DECODESTEP_INLINE size_t panel_block_inputs(Format format) {
    return quantises_activations(format) ? traits(format).values : kBlockInputs;
}

// Dense formats (F32, F16, BF16) store the 32 outputs of each input together; BF16, of each two inputs, an output's two
// side by side: one load then holds two inputs, each of which takes one instruction to widen.
constexpr DECODESTEP_INLINE size_t dense_inputs(Format format) { return format == Format::bf16 ? 2 : 1; }

// Bytes of 32 outputs by the inputs of a block.
constexpr DECODESTEP_INLINE size_t panel_block_bytes(Format format) {
    if (quantises_activations(format)) return panel_layout(format).block_bytes();
    return kPanelOutputs * row_bytes(format, kBlockInputs);
}

// A weight in panels: LinearPanels in Python.
struct LinearPanelWeight {
    const uint8_t* data;  // any address; fastest if it is a multiple of 64, a cache line
    size_t in, out;
    Format format;

    constexpr size_t blocks() const { return ceil_div(in, kBlockInputs); }  // of 32 inputs
    constexpr size_t count() const { return ceil_div(out, kPanelOutputs); }
    constexpr size_t panel_bytes() const {
        return blocks() * kBlockInputs / panel_block_inputs(format) * panel_block_bytes(format);
    }
    const uint8_t* panel(size_t p) const { return data + p * panel_bytes(); }
};

// Packs rows in their own format, rounded to BF16 (to nearest, ties to even), or quantised (linear/quantise_blocks.h).
struct PackLinearPanels {
    RowWeight rows;
    Format format;
    uint8_t* panels;  // count() * panel_bytes() bytes
    int threads;
};

DECODESTEP_KERNEL(vectors, pack_linear_panels, PackLinearPanels)

// y[t, n] = sum over k of x[t, k] * w[n, k], in float32, over blocks of 32 inputs in ascending order
//
// Shapes: x [tokens, w.in], y [tokens, w.out], float32; rows are contiguous, with any stride between them. If
// quantises_activations(w.format), x is first quantised to int8 with a scale for each 32 values (linear/activations.h).
// The products of 32 inputs are summed exactly as integers; for blocks of 256, each such sum is multiplied by its
// integer scale s and added up:
//     blocks of 32:    y = fma(minimum, sum of x, y); y = fma(scale * x_scale, integer, y)
//     blocks of 256:   f = m = 0
//                      for each 32 inputs j: f = fma(integer, x_scale, f); m = fma(minimum m_j, -sum of x, m)
//                      y = fma(scale, f, y); y = fma(minimum, m, y)
// With scales and minima for each 16 values, an integer is the sum of two multiplied sums, and m = fma(integer,
// -x_scale, m) for the sums of the bytes of x multiplied by the minima. The residual of the row's coarsest block is
// added last. Overflow: with blocks of 256, sums are taken before the block's scale is applied, so magnitudes of x
// above 1e32 may give infinities. NaN: a NaN or an infinity in x makes its row of y NaN or infinite. Determinism: a
// row's bits depend neither on the other tokens and outputs nor on the thread count.
struct LinearPanels {
    const float* x;
    ptrdiff_t x_stride;  // floats from one token to the next
    size_t tokens;
    LinearPanelWeight w;
    float* y;
    ptrdiff_t y_stride;
    int threads;
};

DECODESTEP_KERNEL(vectors, linear_panels, LinearPanels)

}  // namespace decodestep
