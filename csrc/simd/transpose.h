// Transposes rows of values, widened to float32, so that sixteen rows are in the lanes of one register.
#pragma once

#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {

// out[c * kLanes + i] = value c of row(i) as float32, for i in [0, kLanes) and c in [0, columns).
// T: float, Bf16, F16 or int8_t; row(i): a pointer to row i, of which no more than `columns` values are read.
template <class T, class Row>
DECODESTEP_INLINE void transpose_rows(Row&& row, size_t columns, float* out) {
    constexpr size_t parts = 4 / sizeof(T), side = kSide * parts;
    const auto square = [&](size_t i, size_t c, size_t width) DECODESTEP_INLINE_LAMBDA {
        Words m[kSide];
#pragma GCC unroll 16
        for (size_t r = 0; r < kSide; ++r)
            m[r] = load_words(reinterpret_cast<const uint8_t*>(row(i + r)) + c * sizeof(T), width * sizeof(T));
        transpose(m);
#pragma GCC unroll 16
        for (size_t w = 0; w < kSide; ++w)
#pragma GCC unroll 4
            for (size_t part = 0; part < parts; ++part)
                if (w * parts + part < width)
                    store_part<T>(out + (c + w * parts + part) * kLanes + i, m[w], static_cast<int>(part));
    };
    for (size_t i = 0; i < kLanes; i += kSide) {
        size_t c = 0;
        for (; c + side <= columns; c += side) square(i, c, side);
        if (c < columns) square(i, c, columns - c);
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
