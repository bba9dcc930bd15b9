// byte_sums.h for the targets with AVX-512: what both share.
#pragma once

namespace decodestep::DECODESTEP_ISA {

// Whether weights of few bits are turned into bytes in memory before many tokens are multiplied by them.
constexpr bool kStoresBytes = false;
// How far ahead weights that are read once are prefetched.
constexpr size_t kPrefetchBytes = 8192;
// How many streams of memory one core reads faster than one.
constexpr size_t kStreams = 1;

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

}  // namespace decodestep::DECODESTEP_ISA
