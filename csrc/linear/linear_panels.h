// A weight packed for the decoder: panels of 32 outputs, each one stream of memory, read once from end to end.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/isa.h"
#include "linear/linear.h"

namespace decodestep {

constexpr size_t kPanelOutputs = 32;
constexpr size_t kBlockInputs = 32;

// Bytes of 32 outputs by 32 inputs. A panel is a row of such blocks, k ascending, zeros behind the last input and
// output:
//   nibbles (Q4_0, Q4_1): for j in [0, 4), for each output, bytes 4j to 4j + 3 of its block in the file: the low halves
//       are inputs 4j.., the high halves 16 + 4j..; then the 32 scales, and for Q4_1 the 32 minima, as float16
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

// Whether products read the activations as bytes, 32 to a scale, instead of as float32.
constexpr bool reads_bytes(Format format) {
    return format == Format::q4_0 || format == Format::q4_1 || format == Format::q8_0;
}

struct Panels {
    const uint8_t* data;  // quickest where it begins with a line of the cache
    size_t in, out;
    Format format;

    constexpr size_t blocks() const { return (in + kBlockInputs - 1) / kBlockInputs; }
    constexpr size_t count() const { return (out + kPanelOutputs - 1) / kPanelOutputs; }
    constexpr size_t panel_bytes() const { return blocks() * panel_block_bytes(format); }
    const uint8_t* panel(size_t p) const { return data + p * panel_bytes(); }
};

// Packs rows as they are, or as another format: Q8_0 (scale the largest magnitude of 32 values / 127, rounded to
// float16) or BF16 (rounded to nearest even).
struct PackLinearPanels {
    Rows rows;
    Format format;
    uint8_t* panels;  // count() * panel_bytes() of them
    int threads;
};

DECODESTEP_KERNEL(pack_linear_panels, PackLinearPanels)

// y[t, n] = sum over k of x[t, k] * w[n, k], in float32, over blocks of 32 inputs in ascending order. Where the format
// has blocks of its own, so has x: each 32 values are rounded to integers in [-127, 127] times a scale, and the
// products inside a block add up exactly; what rounding leaves of a row's coarsest block is added at the end, rounded
// in the same way. The bits depend neither on the other tokens and outputs nor on the thread count.
struct LinearPanels {
    const float* x;
    ptrdiff_t x_stride;
    size_t tokens;
    Panels w;
    float* y;
    ptrdiff_t y_stride;
    int threads;
};

DECODESTEP_KERNEL(linear_panels, LinearPanels)

}  // namespace decodestep
