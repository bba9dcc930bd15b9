// byte_sums.h for the targets with AVX2: what both share.
#pragma once

namespace decodestep::DECODESTEP_BUILD {

// Whether weights of few bits are turned into bytes in memory before many tokens are multiplied by them.
constexpr bool kStoresBytes = true;
// How far ahead weights that are read once are prefetched.
constexpr size_t kPrefetchBytes = 1152;
// How many streams of memory one core reads faster than one.
constexpr size_t kStreams = 4;

DECODESTEP_INLINE f32x16 as_float(i32x16 a) { return {_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high)}; }

DECODESTEP_INLINE i32x16 words_of(u8x64 a) { return {a.low, a.high}; }
DECODESTEP_INLINE u8x64 bytes_of(i32x16 a) { return {a.low, a.high}; }

// For each byte, below 16, one of sixteen.
DECODESTEP_INLINE u8x64 look_up(u8x64 a, const uint8_t* sixteen) {
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(sixteen)));
    return {_mm256_shuffle_epi8(table, a.low), _mm256_shuffle_epi8(table, a.high)};
}

// Rounds 32 values in [-127, 127] to bytes, ties to even, NaN to 0; returns the sums of the first and of the last
// sixteen.
DECODESTEP_INLINE std::pair<PairSums, PairSums> round_to_bytes(f32x16 first, f32x16 second, int8_t* bytes) {
    const i32x16 a = round_to_int(first), b = round_to_int(second);
    const __m256i words0 = _mm256_packs_epi32(a.low, a.high), words1 = _mm256_packs_epi32(b.low, b.high);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packing works on halves of registers
    const __m256i packed = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words0, words1), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes), packed);
    __m256i sums = _mm256_maddubs_epi16(_mm256_set1_epi8(1), packed);
    sums = _mm256_add_epi16(sums, _mm256_shuffle_epi32(sums, 0x4E));
    sums = _mm256_add_epi16(sums, _mm256_shuffle_epi32(sums, 0xB1));
    const auto pair = [](int32_t words) { return PairSums{static_cast<int16_t>(words), words >> 16}; };
    return {pair(_mm256_cvtsi256_si32(sums)), pair(_mm_cvtsi128_si32(_mm256_extracti128_si256(sums, 1)))};
}

// Thirty-two signed bytes as pairs of int16.
DECODESTEP_INLINE i32x16 int8_pairs(const uint8_t* p) {
    const auto* halves = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(halves)), _mm256_cvtepi8_epi16(_mm_loadu_si128(halves + 1))};
}

// Sixteen signed bytes at a, each with the one at b, as pairs of int16.
DECODESTEP_INLINE i32x16 byte_pairs(const uint8_t* a, const uint8_t* b) {
    const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a)),
                  second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b));
    return {_mm256_cvtepi8_epi16(_mm_unpacklo_epi8(first, second)),
            _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(first, second))};
}

// sums + multiply_pairs(a, b), in one piece of assembly as in avx2_narrow_byte_sums.h.
DECODESTEP_INLINE __m256i add_pair_products(__m256i sums, __m256i a, __m256i b) {
    __m256i products;
    asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sums), "=&x"(products) : "x"(a), "x"(b));
    return sums;
}
DECODESTEP_INLINE i32x16 add_pair_products(i32x16 sums, i32x16 a, i32x16 b) {
    return {add_pair_products(sums.low, a.low, b.low), add_pair_products(sums.high, a.high, b.high)};
}

}  // namespace decodestep::DECODESTEP_BUILD
