// The rotation of a pair of values by its position.
#pragma once

#include "simd.h"

namespace decodestep::DECODESTEP_ISA {

// values: pairs side by side, rotated in place; sin, cos: one of each a pair.
inline void rotate_pairs(float* values, size_t pairs, const float* sin, const float* cos) {
    for (size_t i = 0; i < pairs; ++i) {
        const float even = values[2 * i], odd = values[2 * i + 1];
        values[2 * i] = even * cos[i] - odd * sin[i];
        values[2 * i + 1] = odd * cos[i] + even * sin[i];
    }
}

}  // namespace decodestep::DECODESTEP_ISA
