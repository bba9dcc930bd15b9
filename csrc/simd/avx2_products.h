// Bytes and their products with AVX2, also with dot products of bytes (AVX-VNNI).
#pragma once

#include "simd/avx2.h"

namespace decodestep::DECODESTEP_BUILD {

// Bytes.

struct u8x64 {
    __m256i low, high;
};
struct i8x4 {  // the same four bytes for every lane
    __m256i v;
};

DECODESTEP_INLINE i32x16 words_of(u8x64 a) { return {a.low, a.high}; }
DECODESTEP_INLINE u8x64 bytes_of(i32x16 a) { return {a.low, a.high}; }
DECODESTEP_INLINE u8x64 load_bytes(const uint8_t* p) {
    const auto* words = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
}
DECODESTEP_INLINE u8x64 low_nibbles(u8x64 a) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(a.low, mask), _mm256_and_si256(a.high, mask)};
}
DECODESTEP_INLINE u8x64 high_nibbles(u8x64 a) {
    return low_nibbles(u8x64{_mm256_srli_epi32(a.low, 4), _mm256_srli_epi32(a.high, 4)});
}
DECODESTEP_INLINE i8x4 broadcast_quad(const int8_t* p) {
    int32_t quad;
    std::memcpy(&quad, p, sizeof quad);
    return {_mm256_set1_epi32(quad)};
}
// For each byte, below 16, one of sixteen.
DECODESTEP_INLINE u8x64 look_up(u8x64 a, const uint8_t* sixteen) {
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(sixteen)));
    return {_mm256_shuffle_epi8(table, a.low), _mm256_shuffle_epi8(table, a.high)};
}

#define DECODESTEP_HAS_ROUND_TO_BYTES
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

// Pairs of int16: the first and third byte of each lane, the second and fourth, and sums of two products.

DECODESTEP_INLINE i32x16 odd_bytes(i32x16 a) { return {_mm256_srai_epi16(a.low, 8), _mm256_srai_epi16(a.high, 8)}; }
DECODESTEP_INLINE i32x16 even_bytes(i32x16 a) {
    return odd_bytes({_mm256_slli_epi16(a.low, 8), _mm256_slli_epi16(a.high, 8)});
}
DECODESTEP_INLINE i32x16 multiply_pairs(i32x16 a, i32x16 b) {
    return {_mm256_madd_epi16(a.low, b.low), _mm256_madd_epi16(a.high, b.high)};
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

#define DECODESTEP_HAS_ADD_PAIR_PRODUCTS
// sums + multiply_pairs(a, b).
#ifdef __AVXVNNI__
// The sums stay in their registers, between which GCC would copy them.
DECODESTEP_INLINE __m256i add_pair_products(__m256i sums, __m256i a, __m256i b) {
    sums = _mm256_dpwssd_avx_epi32(sums, a, b);
    asm("" : "+x"(sums));
    return sums;
}
#else
// One piece of assembly: GCC would make the products of many steps before it adds them, and run out of registers.
DECODESTEP_INLINE __m256i add_pair_products(__m256i sums, __m256i a, __m256i b) {
    __m256i products;
    asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sums), "=&x"(products) : "x"(a), "x"(b));
    return sums;
}
#endif
DECODESTEP_INLINE i32x16 add_pair_products(i32x16 sums, i32x16 a, i32x16 b) {
    return {add_pair_products(sums.low, a.low, b.low), add_pair_products(sums.high, a.high, b.high)};
}

// Products of bytes: sums of four unsigned bytes times four signed ones, exact.

#ifdef __AVXVNNI__

#define DECODESTEP_HAS_DOT_QUADS
constexpr bool kUnsignedWeights = true;  // see fallbacks.h
// sums + the products of sixteen groups of four unsigned bytes with four signed ones.
DECODESTEP_INLINE i32x16 dot_quads(i32x16 sums, i32x16 a, i32x16 b) {
    return {_mm256_dpbusd_avx_epi32(sums.low, a.low, b.low), _mm256_dpbusd_avx_epi32(sums.high, a.high, b.high)};
}
DECODESTEP_INLINE i32x16 dot_nibbles(i32x16 sums, u8x64 w, i8x4 x) {
    return dot_quads(sums, {w.low, w.high}, {x.v, x.v});
}

#else

#define DECODESTEP_HAS_DOT_BYTES
constexpr int kByteOffset = 0;  // see fallbacks.h
// One piece of assembly, as add_pair_products is.
DECODESTEP_INLINE __m256i dot_pairs(__m256i sums, __m256i w, __m256i x) {
    __m256i products;
    asm("vpmaddubsw %3, %2, %1\n\tvpmaddwd %4, %1, %1\n\tvpaddd %1, %0, %0"
        : "+x"(sums), "=&x"(products)
        : "x"(w), "x"(x), "x"(_mm256_set1_epi16(1)));
    return sums;
}
// maddubs adds two products in sixteen bits, which hold 2 * 128 * 127 but not 2 * 255 * 127: so multiply the magnitude
// of q, and give its sign to x.
DECODESTEP_INLINE __m256i dot_signed(__m256i sums, __m256i w, __m256i x) {
    const __m256i q = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
    return dot_pairs(sums, _mm256_abs_epi8(q), _mm256_sign_epi8(x, q));
}
DECODESTEP_INLINE i32x16 dot_bytes(i32x16 sums, u8x64 w, i8x4 x) {
    return {dot_signed(sums.low, w.low, x.v), dot_signed(sums.high, w.high, x.v)};
}

#define DECODESTEP_HAS_BYTE_SUMS
// In sixteen bits, two a lane: see fallbacks.h.
using ByteSums = i32x16;
constexpr int kByteSumsHold = 32767 / (2 * 127);
constexpr bool kWideSums = false;
DECODESTEP_INLINE ByteSums times(ByteSums sums, int16_t factor) {
    const __m256i factors = _mm256_set1_epi16(factor);
    return {_mm256_mullo_epi16(sums.low, factors), _mm256_mullo_epi16(sums.high, factors)};
}
DECODESTEP_INLINE ByteSums multiply_bytes(u8x64 w, i8x4 x) {
    return {_mm256_maddubs_epi16(w.low, x.v), _mm256_maddubs_epi16(w.high, x.v)};
}
// One piece of assembly, as add_pair_products is.
DECODESTEP_INLINE void add_byte_products(__m256i& sums, __m256i w, __m256i x) {
    __m256i products;
    asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(sums), "=&x"(products) : "x"(w), "x"(x));
}
DECODESTEP_INLINE void add_byte_products(ByteSums& sums, u8x64 w, i8x4 x) {
    add_byte_products(sums.low, w.low, x.v);
    add_byte_products(sums.high, w.high, x.v);
}
DECODESTEP_INLINE i32x16 reduce(ByteSums sums) {
    return multiply_pairs(sums, {_mm256_set1_epi16(1), _mm256_set1_epi16(1)});
}

// Scales lie in both halves of their lane, so that the sum of a lane's two products costs no more than the sum alone.
DECODESTEP_INLINE i32x16 load_scales(const uint8_t* p) {
    const __m256i bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i low = _mm256_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1,  //
                                         4, -1, 4, -1, 5, -1, 5, -1, 6, -1, 6, -1, 7, -1, 7, -1);
    const __m256i high = _mm256_setr_epi8(8, -1, 8, -1, 9, -1, 9, -1, 10, -1, 10, -1, 11, -1, 11, -1,  //
                                          12, -1, 12, -1, 13, -1, 13, -1, 14, -1, 14, -1, 15, -1, 15, -1);
    return {_mm256_shuffle_epi8(bytes, low), _mm256_shuffle_epi8(bytes, high)};
}
DECODESTEP_INLINE i32x16 first_scales(i32x16 pairs) {
    const __m256i twice = _mm256_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13,  //
                                           0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13);
    return {_mm256_shuffle_epi8(pairs.low, twice), _mm256_shuffle_epi8(pairs.high, twice)};
}
DECODESTEP_INLINE i32x16 second_scales(i32x16 pairs) {
    const __m256i twice = _mm256_setr_epi8(2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15,  //
                                           2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15);
    return {_mm256_shuffle_epi8(pairs.low, twice), _mm256_shuffle_epi8(pairs.high, twice)};
}
using ByteProducts = i32x16;
DECODESTEP_INLINE ByteProducts reduce(ByteSums sums, i32x16 scales) { return multiply_pairs(sums, scales); }
DECODESTEP_INLINE ByteProducts add_reduced(ByteProducts products, ByteSums sums, i32x16 scales) {
    return products + multiply_pairs(sums, scales);
}

#define DECODESTEP_HAS_STORED_BYTES
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

#endif  // __AVXVNNI__

}  // namespace decodestep::DECODESTEP_BUILD
