// Quantises values to GGUF's blocks of 256 (K-quants).
#pragma once

#include "core/isa.h"
#include "linear/linear.h"

namespace decodestep {

// A block has sub-blocks of 32 values (Q4_K, Q5_K: value = d * scale * q - dmin * minimum, q in [0, 15] or [0, 31]) or
// of 16 (Q6_K: value = d * scale * q, q in [-32, 31]). Each sub-block gets the scale, and the minimum if it has one,
// with the least weighted squared error among some grids near the one that spans its values:
//     Q4_K, Q5_K: 21 grids with largest - 1 to largest + 1 steps; weights sqrt(mean of x^2) + |x|
//     Q6_K:       19 grids whose value of largest magnitude is -31.1 to -32.9 steps; weights x^2
// Then d and dmin make multiples of them of six bits (Q6_K: of eight), the integers are rounded to nearest, d and dmin
// are refitted to these by least squares, and the integers are rounded again.
//
// Values are finite. d and dmin are float16 and infinite for values beyond its range. Bits do not depend on the tier:
// no product is fused with a sum.
struct QuantiseKBlocks {
    const float* values;  // [blocks, 256]
    size_t blocks;
    Format format;  // q4_k, q5_k or q6_k
    uint8_t* out;   // [blocks, row_bytes(format, 256)]
    int threads;
};

DECODESTEP_VECTOR_KERNEL(quantise_k_blocks, QuantiseKBlocks)

}  // namespace decodestep
