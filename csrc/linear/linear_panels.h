// y = x W for a weight packed in panels of 32 outputs, each one stream of memory that a product reads from end to end.
//
// Why beside `linear`: a decoder reads every weight at every step, so the time is that of reading memory. A panel keeps
// the blocks of 32 outputs together, so the reads are one stream, and its order of bytes lets one instruction multiply
// 4 inputs of 16 outputs as integers; rows would need a shuffle for each. Packing costs one pass over the weight, when
// a model is loaded.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/isa.h"
#include "linear/linear.h"

namespace decodestep {

constexpr size_t kPanelOutputs = 32;
constexpr size_t kBlockInputs = 32;

// Bytes of 32 outputs by 32 inputs. A panel is a row of such blocks, inputs ascending; a panel's missing outputs and
// the last block's missing inputs are zeros:
//   nibbles (Q4_0, Q4_1): for j in [0, 4), for each output, bytes 4j to 4j + 3 of its block in the file: the low
//   nibbles
//       are inputs 4j.., the high nibbles inputs 16 + 4j..; then the 32 scales, and for Q4_1 the 32 minima, as float16
//   bytes (Q8_0): for j in [0, 8), for each output, its values 4j to 4j + 3, plus 128; then the 32 scales, as float16
//   dense (F32, F16, BF16): for each input its 32 outputs
constexpr size_t panel_block_bytes(Format format) {
    switch (format) {
        case Format::f32:
            return 4096;
        case Format::f16:
        case Format::bf16:
            return 2048;
        case Format::q4_0:
            return 512 + 64;
        case Format::q4_1:
            return 512 + 128;
        case Format::q8_0:
            return 1024 + 64;
        default:
            return 0;  // blocks of 256 have no panels
    }
}

// Whether products with panels of that format read the activations as int8 with a scale for each 32; else as float32.
constexpr bool quantises_activations(Format format) {
    return format == Format::q4_0 || format == Format::q4_1 || format == Format::q8_0;
}

// A weight in panels: LinearPanels in Python.
struct LinearPanelWeight {
    const uint8_t* data;  // any address; fastest if it is a multiple of 64, a cache line
    size_t in, out;
    Format format;

    constexpr size_t blocks() const { return (in + kBlockInputs - 1) / kBlockInputs; }
    constexpr size_t count() const { return (out + kPanelOutputs - 1) / kPanelOutputs; }
    constexpr size_t panel_bytes() const { return blocks() * panel_block_bytes(format); }
    const uint8_t* panel(size_t p) const { return data + p * panel_bytes(); }
};

// Packs rows in their own format, or rounded to Q8_0 (scale = largest magnitude of 32 values / 127, rounded to float16)
// or to BF16 (to nearest, ties to even).
struct PackLinearPanels {
    RowWeight rows;
    Format format;
    uint8_t* panels;  // count() * panel_bytes() bytes
    int threads;
};

DECODESTEP_VECTOR_KERNEL(pack_linear_panels, PackLinearPanels)

// y[t, n] = sum over k of x[t, k] * w[n, k], in float32, over blocks of 32 inputs in ascending order
//
// Shapes: x [tokens, w.in], y [tokens, w.out], float32; their rows may lie apart, each is contiguous.
// If quantises_activations(w.format), x is quantised first (linear/activations.h): int8 with a scale for each 32
// values. The products inside a block add up exactly as integers; the residual of the row's coarsest block is added
// last. NaN: a NaN or an infinity in x makes its row of y NaN or infinite. Determinism: a row's bits depend neither on
// the other tokens and outputs nor on the thread count.
struct LinearPanels {
    const float* x;
    ptrdiff_t x_stride;  // floats from one token to the next
    size_t tokens;
    LinearPanelWeight w;
    float* y;
    ptrdiff_t y_stride;
    int threads;
};

DECODESTEP_KERNEL(linear_panels, LinearPanels)

}  // namespace decodestep
