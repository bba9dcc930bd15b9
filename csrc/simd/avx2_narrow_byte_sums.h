// ByteSums of AVX2 without dot products: in sixteen bits, two a lane; see wide_byte_sums.h.
#pragma once

namespace decodestep::DECODESTEP_BUILD {

using ByteSums = i32x16;
constexpr int kByteSumsHold = 32767 / (2 * 127);
constexpr bool kWideSums = false;
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
using ByteProducts = i32x16;
DECODESTEP_INLINE ByteProducts total(ByteSums sums, i32x16 factors) { return multiply_pairs(sums, factors); }
DECODESTEP_INLINE ByteProducts add_total(ByteProducts products, ByteSums sums, i32x16 factors) {
    return products + multiply_pairs(sums, factors);
}

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

}  // namespace decodestep::DECODESTEP_BUILD
