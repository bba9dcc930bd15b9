// What the x86 targets share: their operations on registers of 128 and 256 bits, from AVX2 on.
#pragma once

#include <immintrin.h>

#include "simd/lanes.h"

namespace decodestep::DECODESTEP_BUILD {

// Folds of the upper half onto the lower one: 4 + 4, 2 + 2, 1 + 1.
DECODESTEP_INLINE float sum(__m256 a) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
DECODESTEP_INLINE float largest(__m256 a) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// Compiler barrier: keeps `a` in a general register, and earlier scalar stores from being merged into a vector store.
DECODESTEP_INLINE void keep_scalar(uint64_t& a) { asm volatile("" : "+r"(a) : : "memory"); }

// Sixteen bytes hold 32 values of four bits: here the lower ones, the upper ones.
DECODESTEP_INLINE __m128i low_nibbles(__m128i bytes) { return _mm_and_si128(bytes, _mm_set1_epi8(15)); }
DECODESTEP_INLINE __m128i high_nibbles(__m128i bytes) { return low_nibbles(_mm_srli_epi16(bytes, 4)); }

struct u8x32 {
    __m256i v;
};
DECODESTEP_INLINE u8x32 bit_field(const uint8_t* p, size_t shift, int mask) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i shifted = _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(static_cast<int>(shift)));
    return {_mm256_and_si256(shifted, _mm256_set1_epi8(static_cast<char>(mask)))};
}
DECODESTEP_INLINE u8x32 join_nibbles(u8x32 low, u8x32 high) {
    return {_mm256_or_si256(low.v, _mm256_slli_epi16(high.v, 4))};
}

}  // namespace decodestep::DECODESTEP_BUILD
