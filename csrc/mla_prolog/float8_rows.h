// Rows of float8_e4m3fn: quantised with one scale for a row, for a tile or, as a power of two, for a block; and read
// back as the bfloat16 that is multiplied.
#pragma once

#include <algorithm>

#include "core/division.h"
#include "core/float8.h"
#include "linear/linear_panels.h"
#include "simd/rounding.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr float kF8Share = 1.0f / kLargestF8;  // of a largest magnitude, which gives its scale
constexpr size_t kScaledBlock = 32;            // values that share a power of two
constexpr float kLeastOfF8Tile = 1e-4f;        // below which a tile's largest magnitude counts as this

// q = value / scale, and returns the scale, largest / 448; a row of zeros has scale 0.
template <class T>
inline float quantise_float8_row(const T* values, size_t n, F8* q) {
    const float scale = largest_magnitude(values, n) * kF8Share;
    for (size_t i = 0; i < n; ++i) {
        const float value = to_float(values[i]);
        q[i] = to_f8(scale == 0.0f ? value : value / scale);
    }
    return scale;
}

// The same for tiles of `tile` values, whose scales, float32 in any alignment, go to `scales`.
inline void quantise_float8_tiles(const float* values, size_t n, size_t tile, F8* q, uint8_t* scales) {
    for (size_t i = 0; i < n; i += tile, scales += sizeof(float)) {
        const float largest = largest_magnitude(values + i, tile),
                    scale = (largest < kLeastOfF8Tile ? kLeastOfF8Tile : largest) * kF8Share;
        for (size_t j = i; j < i + tile; ++j) q[j] = to_f8(values[j] / scale);
        std::memcpy(scales, &scale, sizeof scale);
    }
}

// The same for blocks of 32 of n values, with scales 2^(floor(log2(largest)) - 8) as exponents: the least one for zeros
// and subnormals, of which nothing is left, and NaN, as are all values, for a block with an infinity or NaN.
inline void quantise_float8_blocks(const float* values, size_t n, F8* q, uint8_t* exponents) {
    constexpr uint32_t kOfLargest = 8, kNaN = 255;
    for (size_t i = 0; i < n; i += kScaledBlock) {
        const uint32_t exponent = std::bit_cast<uint32_t>(largest_magnitude(values + i, kScaledBlock)) >> 23;
        const uint32_t stored = exponent == kNaN ? kNaN : exponent > kOfLargest ? exponent - kOfLargest : 0;
        const float factor =
            exponent == 0 ? 0.0f : exponent_value(static_cast<uint8_t>(stored == kNaN ? kNaN : 254 - stored));
        for (size_t j = i; j < i + kScaledBlock; ++j) q[j] = to_f8(values[j] * factor);
        exponents[i / kScaledBlock] = static_cast<uint8_t>(stored);
    }
}

// Values times the powers of two of their blocks, if `exponents` is not null.
inline void read_float8(const F8* q, size_t n, const uint8_t* exponents, Bf16* out) {
    for (size_t i = 0; i < n; i += kScaledBlock) {
        const float scale = exponents ? exponent_value(exponents[i / kScaledBlock]) : 1.0f;
        for (size_t j = i; j < std::min(n, i + kScaledBlock); ++j) out[j] = to_bf16(to_float(q[j]) * scale);
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
