// Float32 to float16, rounded to nearest even.
#pragma once

#include "simd/simd.h"

namespace decodestep::DECODESTEP_ISA {

DECODESTEP_INLINE void to_f16(f32x16 a, uint16_t* out) {
#if defined(__AVX512F__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
    auto* halves = reinterpret_cast<__m128i*>(out);
    _mm_storeu_si128(halves, _mm256_cvtps_ph(a.low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(halves + 1, _mm256_cvtps_ph(a.high, _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < kLanes; ++i) {
        uint32_t bits;
        std::memcpy(&bits, &a.v[i], sizeof bits);
        const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
        uint32_t half;
        if (magnitude > 0x7f800000) {
            half = 0x7e00 | (magnitude >> 13 & 0x3ff);
        } else if (magnitude < 0x38800000) {
            // Subnormal: adding a half lets the float unit round at the right place.
            float shifted;
            std::memcpy(&shifted, &magnitude, sizeof shifted);
            shifted += 0.5f;
            std::memcpy(&half, &shifted, sizeof half);
            half -= 0x3f000000;
        } else {
            const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000;
            half = rounded >= 0x0f800000 ? 0x7c00 : rounded >> 13;
        }
        out[i] = static_cast<uint16_t>(sign | half);
    }
#endif
}

}  // namespace decodestep::DECODESTEP_ISA
