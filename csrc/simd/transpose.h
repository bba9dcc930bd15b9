// Rows of a cache transposed into columns of float32, so that sixteen keys lie in the lanes of one register. Whole
// words of four bytes are transposed and only then split, which halves the work for 16-bit values and quarters it for
// bytes.
#pragma once

#include "simd/simd.h"

namespace decodestep::DECODESTEP_ISA {

// out[c * stride + i] = value first + c of rows[i], for i in [0, n) and c in [0, columns). The values are float, Bf16,
// F16 or int8_t. There are pointers in rows and ahead up to the next multiple of kSide, and those lanes are written
// too, as are rows of `out` up to the end of the last word. Prefetches the same columns of ahead[i]: those rows come
// next.
template <class T>
void transpose_rows(const uint8_t* const* rows, const uint8_t* const* ahead, size_t n, size_t first, size_t columns,
                    float* out, size_t stride) {
    constexpr size_t bytes = sizeof(T), parts = 4 / bytes, side = kSide * parts;
    for (size_t i = 0; i < n; i += kSide) {
        for (size_t c = 0; c < columns; c += side) {
            const size_t width = columns - c < side ? columns - c : side, at = (first + c) * bytes;
            Words m[kSide];
#pragma GCC unroll 16
            for (size_t r = 0; r < kSide; ++r) {
                m[r] = load_words(rows[i + r] + at, width * bytes);
                prefetch(ahead[i + r] + at);
            }
            transpose(m);
#pragma GCC unroll 16
            for (size_t w = 0; w < kSide; ++w) {
                if (w * parts >= width) break;
#pragma GCC unroll 4
                for (size_t part = 0; part < parts; ++part)
                    store_part<T>(out + (c + w * parts + part) * stride + i, m[w], static_cast<int>(part));
            }
        }
    }
}

}  // namespace decodestep::DECODESTEP_ISA
