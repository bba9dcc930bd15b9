// Rows of float32 transposed, so that sixteen of them lie in the lanes of one register.
#pragma once

#include "simd/simd.h"

namespace decodestep::DECODESTEP_ISA {

// out[c * kLanes + i] = rows[i * stride + c], for i in [0, kLanes) and c in [0, columns). Reads rows up to the next
// multiple of kSide columns.
inline void transpose_rows(const float* rows, size_t stride, size_t columns, float* out) {
    for (size_t i = 0; i < kLanes; i += kSide) {
        for (size_t c = 0; c < columns; c += kSide) {
            const size_t width = columns - c < kSide ? columns - c : kSide;
            Words m[kSide];
#pragma GCC unroll 16
            for (size_t r = 0; r < kSide; ++r)
                m[r] = load_words(reinterpret_cast<const uint8_t*>(rows + (i + r) * stride + c), kSide * sizeof(float));
            transpose(m);
#pragma GCC unroll 16
            for (size_t w = 0; w < kSide; ++w) {
                if (w >= width) break;
                store_words(out + (c + w) * kLanes + i, m[w]);
            }
        }
    }
}

}  // namespace decodestep::DECODESTEP_ISA
