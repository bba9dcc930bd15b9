// The two 16-bit floating-point types as single values; csrc/simd has their vectors.
#pragma once

#include <bit>
#include <cstdint>

#include "core/compiler.h"

namespace decodestep {

struct Bf16 {
    uint16_t bits;
};

struct F16 {
    uint16_t bits;
};

DECODESTEP_INLINE float to_float(Bf16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }

DECODESTEP_INLINE float to_float(F16 value) {
    const uint32_t magnitude = value.bits & 0x7FFFu, sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
    // Rebias the exponent by a multiplication, which also normalises the subnormals.
    uint32_t bits = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f);
    if (magnitude >= 0x7C00u) bits |= 0x7F800000u;
    return std::bit_cast<float>(bits | sign);
}

// Both round to nearest, ties to even; NaN stays NaN.
DECODESTEP_INLINE Bf16 to_bf16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value), even = bits + 0x7fff + (bits >> 16 & 1);
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    return {static_cast<uint16_t>(nan ? bits >> 16 | 0x40 : even >> 16)};
}

DECODESTEP_INLINE F16 to_f16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    uint32_t half;
    if (magnitude > 0x7f800000) {
        half = 0x7e00 | (magnitude >> 13 & 0x3ff);
    } else if (magnitude < 0x38800000) {
        // Subnormal: adding 0.5 makes the addition round at the last bit that float16 keeps.
        half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
    } else {
        const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000;
        half = rounded >= 0x0f800000 ? 0x7c00 : rounded >> 13;
    }
    return {static_cast<uint16_t>(sign | half)};
}

}  // namespace decodestep
