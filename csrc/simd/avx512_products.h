// Bytes and their products with AVX-512, also with dot products of bytes (VNNI) and of pairs of bfloat16 (BF16).
#pragma once

#include "simd/avx512.h"

namespace decodestep::DECODESTEP_BUILD {

// Bytes.

struct u8x64 {
    __m512i v;
};
struct i8x4 {  // the same four bytes for every lane
    __m512i v;
};

DECODESTEP_INLINE i32x16 words_of(u8x64 a) { return {a.v}; }
DECODESTEP_INLINE u8x64 bytes_of(i32x16 a) { return {a.v}; }
DECODESTEP_INLINE u8x64 load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
DECODESTEP_INLINE u8x64 low_nibbles(u8x64 a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
DECODESTEP_INLINE u8x64 high_nibbles(u8x64 a) {
    return {_mm512_and_si512(_mm512_srli_epi32(a.v, 4), _mm512_set1_epi8(15))};
}
DECODESTEP_INLINE i8x4 broadcast_quad(const int8_t* p) {
    int32_t quad;
    std::memcpy(&quad, p, sizeof quad);
    return {_mm512_set1_epi32(quad)};
}
// For each byte, below 16, one of sixteen.
DECODESTEP_INLINE u8x64 look_up(u8x64 a, const uint8_t* sixteen) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(sixteen));
    return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), a.v)};
}

// Pairs of int16: the first and third byte of each lane, the second and fourth, and sums of two products.

DECODESTEP_INLINE i32x16 odd_bytes(i32x16 a) { return {_mm512_srai_epi16(a.v, 8)}; }
DECODESTEP_INLINE i32x16 even_bytes(i32x16 a) { return {_mm512_srai_epi16(_mm512_slli_epi16(a.v, 8), 8)}; }
DECODESTEP_INLINE i32x16 multiply_pairs(i32x16 a, i32x16 b) { return {_mm512_madd_epi16(a.v, b.v)}; }
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

// Products of bytes: sums of four unsigned bytes times four signed ones, exact.

#ifdef __AVX512VNNI__

#define DECODESTEP_HAS_DOT_QUADS
constexpr bool kUnsignedWeights = true;  // see fallbacks.h
// sums + the products of sixteen groups of four unsigned bytes with four signed ones.
DECODESTEP_INLINE i32x16 dot_quads(i32x16 sums, i32x16 a, i32x16 b) { return {_mm512_dpbusd_epi32(sums.v, a.v, b.v)}; }
DECODESTEP_INLINE i32x16 dot_nibbles(i32x16 sums, u8x64 w, i8x4 x) { return dot_quads(sums, {w.v}, {x.v}); }

#define DECODESTEP_HAS_ADD_PAIR_PRODUCTS
// sums + multiply_pairs(a, b). The sums stay in their registers, between which GCC would copy them.
DECODESTEP_INLINE i32x16 add_pair_products(i32x16 sums, i32x16 a, i32x16 b) {
    sums.v = _mm512_dpwssd_epi32(sums.v, a.v, b.v);
    asm("" : "+v"(sums.v));
    return sums;
}

#else

#define DECODESTEP_HAS_DOT_BYTES
constexpr int kByteOffset = 0;  // see fallbacks.h
DECODESTEP_INLINE i32x16 dot_nibbles(i32x16 sums, u8x64 w, i8x4 x) {
    const __m512i pairs = _mm512_madd_epi16(_mm512_maddubs_epi16(w.v, x.v), _mm512_set1_epi16(1));
    return {_mm512_add_epi32(sums.v, pairs)};
}
// maddubs adds two products in sixteen bits, which hold 2 * 128 * 127 but not 2 * 255 * 127: so multiply the magnitude
// of q, and give its sign to x.
DECODESTEP_INLINE i32x16 dot_bytes(i32x16 sums, u8x64 w, i8x4 x) {
    const __m512i q = _mm512_xor_si512(w.v, _mm512_set1_epi8(-128));
    const __m512i signed_x = _mm512_mask_sub_epi8(x.v, _mm512_movepi8_mask(q), _mm512_setzero_si512(), x.v);
    return dot_nibbles(sums, {_mm512_abs_epi8(q)}, {signed_x});
}

#define DECODESTEP_HAS_BYTE_SUMS
// In sixteen bits, two a lane: see fallbacks.h.
using ByteSums = i32x16;
constexpr int kByteSumsHold = 32767 / (2 * 127);
constexpr bool kWideSums = false;
DECODESTEP_INLINE ByteSums times(ByteSums sums, int16_t factor) {
    return {_mm512_mullo_epi16(sums.v, _mm512_set1_epi16(factor))};
}
DECODESTEP_INLINE ByteSums multiply_bytes(u8x64 w, i8x4 x) { return {_mm512_maddubs_epi16(w.v, x.v)}; }
DECODESTEP_INLINE void add_byte_products(ByteSums& sums, u8x64 w, i8x4 x) {
    sums.v = _mm512_add_epi16(sums.v, _mm512_maddubs_epi16(w.v, x.v));
}
DECODESTEP_INLINE i32x16 reduce(ByteSums sums) { return multiply_pairs(sums, {_mm512_set1_epi16(1)}); }

// Scales lie in both halves of their lane, so that the sum of a lane's two products costs no more than the sum alone.
DECODESTEP_INLINE i32x16 load_scales(const uint8_t* p) {
    const i32x16 bytes = load_u8(p);
    return bytes | shift_left<16>(bytes);
}
DECODESTEP_INLINE i32x16 first_scales(i32x16 pairs) {
    const i32x16 first = pairs & broadcast_int(0xffff);
    return first | shift_left<16>(first);
}
DECODESTEP_INLINE i32x16 second_scales(i32x16 pairs) {
    const i32x16 second = shift_right<16>(pairs);
    return second | shift_left<16>(second);
}
using ByteProducts = i32x16;
DECODESTEP_INLINE ByteProducts reduce(ByteSums sums, i32x16 scales) { return multiply_pairs(sums, scales); }
DECODESTEP_INLINE ByteProducts add_reduced(ByteProducts products, ByteSums sums, i32x16 scales) {
    return products + multiply_pairs(sums, scales);
}

#endif  // __AVX512VNNI__

#ifdef __AVX512BF16__

// Products of pairs of bfloat16: see fallbacks.h.

#define DECODESTEP_HAS_BF16_PAIRS
struct Bf16Pairs {
    __m512bh v;
};
DECODESTEP_INLINE Bf16Pairs bf16_pairs(i32x16 bits) { return {reinterpret_cast<__m512bh>(bits.v)}; }
DECODESTEP_INLINE f32x16 add_products(f32x16 sums, Bf16Pairs x, Bf16Pairs w) {
    return {_mm512_dpbf16_ps(sums.v, x.v, w.v)};
}

struct PairDot {
    static constexpr int kSteps = 1;
    using Value = Bf16;

    template <int>
    static DECODESTEP_INLINE Bf16Pairs token(const Value* pair) {
        int32_t bits;
        std::memcpy(&bits, pair, sizeof bits);
        return bf16_pairs(broadcast_int(bits));
    }
    template <int>
    static DECODESTEP_INLINE Bf16Pairs weights(const void* p, bool first = true, bool second = true) {
        const uint32_t wanted = (first ? 0xffffu : 0) | (second ? 0xffff0000u : 0);
        const i32x16 bits = load_bits(p);
        return bf16_pairs(first && second ? bits : bits & broadcast_int(static_cast<int32_t>(wanted)));
    }
    static DECODESTEP_INLINE f32x16 add(f32x16 sums, Bf16Pairs x, Bf16Pairs w) { return add_products(sums, x, w); }
    static DECODESTEP_INLINE void round_values(Value* out, f32x16 values);
    static DECODESTEP_INLINE void round_weights(Value* out, f32x16 weights) { round_values(out, weights); }
};

// Rounds sums of products of bfloat16. The instruction flushes subnormals, as add_products has done before: for other
// values see convert in simd/rounding.h.
DECODESTEP_INLINE void store_sums(Bf16* p, f32x16 sums) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sums.v)));
}

DECODESTEP_INLINE void PairDot::round_values(Value* out, f32x16 values) { store_sums(out, values); }

#endif  // __AVX512BF16__

}  // namespace decodestep::DECODESTEP_BUILD
