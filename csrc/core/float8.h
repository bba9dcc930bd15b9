// float8_e4m3fn and float8_e8m0fnu as single values.
#pragma once

#include <bit>
#include <cstdint>

#include "core/compiler.h"

namespace decodestep {

// A sign, four bits of exponent, three of mantissa; no infinities, and one magnitude that is NaN.
struct F8 {
    uint8_t bits;
};
constexpr float kLargestF8 = 448.0f;

DECODESTEP_INLINE float to_float(F8 value) {
    const uint32_t magnitude = value.bits & 0x7Fu, sign = static_cast<uint32_t>(value.bits & 0x80u) << 24;
    // Rebias the exponent by a multiplication, which also normalises the subnormals.
    const uint32_t bits = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 20) * 0x1p120f);
    return std::bit_cast<float>((magnitude == 0x7Fu ? 0x7FC00000u : bits) | sign);
}

// To nearest, ties to even, saturating; NaN stays NaN.
DECODESTEP_INLINE F8 to_f8(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
    uint32_t rounded;
    if (magnitude > 0x7f800000) {
        rounded = 0x7f;
    } else if (std::bit_cast<float>(magnitude) >= kLargestF8) {
        rounded = 0x7e;
    } else if (magnitude < 0x3c800000) {
        // Subnormal: adding 2^14 makes the addition round at the last bit that the format keeps, 2^-9.
        rounded = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14f) - 0x46800000;
    } else {
        rounded = ((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20) - (120 << 3);
    }
    return {static_cast<uint8_t>(sign | rounded)};
}

// 2^(bits - 127), NaN for 255: an exponent of float32.
DECODESTEP_INLINE float exponent_value(uint8_t bits) {
    const uint32_t value = static_cast<uint32_t>(bits) << 23;
    return std::bit_cast<float>(bits == 0 ? 0x400000u : bits == 255 ? 0x7FC00000u : value);
}

}  // namespace decodestep
