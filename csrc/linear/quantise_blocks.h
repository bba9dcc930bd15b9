// Quantises values to GGUF's blocks.
#pragma once

#include "core/isa.h"
#include "linear/linear.h"

namespace decodestep {

// Q8_0: the scale is the largest magnitude / 127, rounded to float16; integers to nearest, ties to even.
//
// Q4_0, Q5_0: the value x of largest magnitude becomes -8 or -16 and the scale x / -8 or x / -16; integers to nearest,
// ties up, before the scale is rounded to float16. The bits of the gguf package.
//
// A block of 256 has sub-blocks of 32 values (Q4_K, Q5_K) or of 16 (Q2_K, Q3_K, Q6_K). In Q2_K, Q4_K and Q5_K a value
// is d * scale * q - dmin * minimum, q in [0, 3], [0, 15] or [0, 31]; in Q3_K and Q6_K it is d * scale * q, q in [-4,
// 3] or [-32, 31]. Each sub-block gets the scale, and the minimum if it has one, with the least weighted squared error
// among some grids near the one that spans its values:
//     with minima:    21 grids with largest - 1 to largest + 1 steps; weights sqrt(mean of x^2) + |x|
//     without minima: 19 grids whose value of largest magnitude is 0.9 steps more to 0.9 less than -4 or -32; weights
//                     x^2 in Q6_K, in Q3_K the same
// Then d and dmin make multiples of them (of four bits in Q2_K, eight in Q6_K, otherwise six), the integers are rounded
// to nearest, d and dmin are refitted to these by least squares, and the integers are rounded again.
//
// A scale, d or dmin, is infinite or NaN for values beyond the range that it allows, and for values that are not
// finite. Bits do not depend on the tier: no product is fused with a sum.
struct QuantiseBlocks {
    const float* values;  // [blocks, values of a block]
    size_t blocks;
    Format format;  // one with is_quantised_to
    uint8_t* out;   // [blocks, bytes of a block]
    int threads;
};

DECODESTEP_KERNEL(vectors, quantise_blocks, QuantiseBlocks)

}  // namespace decodestep
