// byte_sums.h for the targets with AVX-512: what both share.
#pragma once

namespace decodestep::DECODESTEP_BUILD {

// Whether weights of few bits are turned into bytes in memory before many tokens are multiplied by them.
constexpr bool kStoresBytes = true;
// How far ahead weights that are read once are prefetched.
constexpr size_t kPrefetchBytes = 1152;
// How many streams of memory one core reads faster than one.
constexpr size_t kStreams = 4;

DECODESTEP_INLINE f32x16 as_float(i32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
DECODESTEP_INLINE i32x16 words_of(u8x64 a) { return {a.v}; }
DECODESTEP_INLINE u8x64 bytes_of(i32x16 a) { return {a.v}; }

// For each byte, below 16, one of sixteen.
DECODESTEP_INLINE u8x64 look_up(u8x64 a, const uint8_t* sixteen) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(sixteen));
    return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), a.v)};
}
// Thirty-two signed bytes as pairs of int16.
DECODESTEP_INLINE i32x16 int8_pairs(const uint8_t* p) {
    return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

// Sixteen signed bytes at a, each with the one at b, as pairs of int16.
DECODESTEP_INLINE i32x16 byte_pairs(const uint8_t* a, const uint8_t* b) {
    const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a)),
                  second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b));
    return {_mm512_cvtepi8_epi16(_mm256_set_m128i(_mm_unpackhi_epi8(first, second), _mm_unpacklo_epi8(first, second)))};
}

// sums + multiply_pairs(a, b).
DECODESTEP_INLINE i32x16 add_pair_products(i32x16 sums, i32x16 a, i32x16 b) {
    return {_mm512_add_epi32(sums.v, _mm512_madd_epi16(a.v, b.v))};
}

}  // namespace decodestep::DECODESTEP_BUILD

#include "simd/pair_sums.h"
