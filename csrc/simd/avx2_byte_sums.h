// byte_sums.h for AVX2.
#pragma once

namespace decodestep::DECODESTEP_ISA {

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

// sums + multiply_pairs(a, b), in one piece of assembly as in add_bytes.
DECODESTEP_INLINE __m256i add_pair_products(__m256i sums, __m256i a, __m256i b) {
    __m256i products;
    asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sums), "=&x"(products) : "x"(a), "x"(b));
    return sums;
}
DECODESTEP_INLINE i32x16 add_pair_products(i32x16 sums, i32x16 a, i32x16 b) {
    return {add_pair_products(sums.low, a.low, b.low), add_pair_products(sums.high, a.high, b.high)};
}

// --- sums of products of bytes in sixteen bits, two a lane: see wide_byte_sums.h

using ByteSums = i32x16;
constexpr int kByteSumsHold = 32767 / (2 * 127);
DECODESTEP_INLINE ByteSums starting_at(int32_t words) { return broadcast_int(words); }
DECODESTEP_INLINE ByteSums first_bytes(u8x64 w, i8x4 x) {
    return {_mm256_maddubs_epi16(w.low, x.v), _mm256_maddubs_epi16(w.high, x.v)};
}
// One piece of assembly: GCC would make the products of many steps before it adds them, and run out of registers.
DECODESTEP_INLINE void add_bytes(__m256i& sums, __m256i w, __m256i x) {
    __m256i products;
    asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(sums), "=&x"(products) : "x"(w), "x"(x));
}
DECODESTEP_INLINE void add_bytes(ByteSums& sums, u8x64 w, i8x4 x) {
    add_bytes(sums.low, w.low, x.v);
    add_bytes(sums.high, w.high, x.v);
}
DECODESTEP_INLINE i32x16 total(ByteSums sums) {
    return multiply_pairs(sums, {_mm256_set1_epi16(1), _mm256_set1_epi16(1)});
}

// Factors lie in both halves of their lane, so that the sum of a lane's two products costs no more than the sum alone.
DECODESTEP_INLINE i32x16 factors(const uint8_t* p) {
    const __m256i bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i low = _mm256_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1,  //
                                         4, -1, 4, -1, 5, -1, 5, -1, 6, -1, 6, -1, 7, -1, 7, -1);
    const __m256i high = _mm256_setr_epi8(8, -1, 8, -1, 9, -1, 9, -1, 10, -1, 10, -1, 11, -1, 11, -1,  //
                                          12, -1, 12, -1, 13, -1, 13, -1, 14, -1, 14, -1, 15, -1, 15, -1);
    return {_mm256_shuffle_epi8(bytes, low), _mm256_shuffle_epi8(bytes, high)};
}
DECODESTEP_INLINE i32x16 first_factors(i32x16 pairs) {
    const __m256i twice = _mm256_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13,  //
                                           0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13);
    return {_mm256_shuffle_epi8(pairs.low, twice), _mm256_shuffle_epi8(pairs.high, twice)};
}
DECODESTEP_INLINE i32x16 second_factors(i32x16 pairs) {
    const __m256i twice = _mm256_setr_epi8(2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15,  //
                                           2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15);
    return {_mm256_shuffle_epi8(pairs.low, twice), _mm256_shuffle_epi8(pairs.high, twice)};
}
DECODESTEP_INLINE i32x16 total(ByteSums sums, i32x16 factors) { return multiply_pairs(sums, factors); }

// Weights of dot_bytes in the form in which many tokens are multiplied by them: magnitudes, and values for their signs,
// which are read from memory.
struct StoredBytes {
    u8x64 magnitudes;
    const __m256i* values;
};
constexpr size_t kStoredBytes = 128;
DECODESTEP_INLINE void store_weights(uint8_t* p, u8x64 w) {
    auto* to = reinterpret_cast<__m256i*>(p);
    const __m256i low = _mm256_xor_si256(w.low, _mm256_set1_epi8(-128)),
                  high = _mm256_xor_si256(w.high, _mm256_set1_epi8(-128));
    _mm256_storeu_si256(to, low);
    _mm256_storeu_si256(to + 1, high);
    _mm256_storeu_si256(to + 2, _mm256_abs_epi8(low));
    _mm256_storeu_si256(to + 3, _mm256_abs_epi8(high));
}
DECODESTEP_INLINE StoredBytes load_weights(const uint8_t* p) {
    return {load_bytes(p + 64), reinterpret_cast<const __m256i*>(p)};
}
DECODESTEP_INLINE void add_signed(__m256i& sums, __m256i magnitudes, const __m256i& values, __m256i x, __m256i ones) {
    __m256i products;
    asm("vpsignb %2, %4, %1\n\tvpmaddubsw %1, %3, %1\n\tvpmaddwd %5, %1, %1\n\tvpaddd %1, %0, %0"
        : "+x"(sums), "=&x"(products)
        : "m"(values), "x"(magnitudes), "x"(x), "x"(ones));
}
DECODESTEP_INLINE i32x16 dot_bytes(i32x16 sums, const StoredBytes& w, i8x4 x) {
    add_signed(sums.low, w.magnitudes.low, w.values[0], x.v, _mm256_set1_epi16(1));
    add_signed(sums.high, w.magnitudes.high, w.values[1], x.v, _mm256_set1_epi16(1));
    return sums;
}

}  // namespace decodestep::DECODESTEP_ISA
