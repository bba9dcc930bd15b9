// Sums of products of bytes: sixteen lanes, each of four unsigned bytes times four signed ones, added up exactly.
#pragma once

#include "simd/integers.h"

namespace decodestep::DECODESTEP_ISA {

#if defined(__AVX512F__)

struct u8x64 {
    __m512i v;
};
struct i8x4 {  // the same four bytes for every lane
    __m512i v;
};

DECODESTEP_INLINE u8x64 load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
DECODESTEP_INLINE u8x64 low_halves(u8x64 a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
DECODESTEP_INLINE u8x64 high_halves(u8x64 a) {
    return {_mm512_and_si512(_mm512_srli_epi32(a.v, 4), _mm512_set1_epi8(15))};
}
DECODESTEP_INLINE i8x4 broadcast_four(const int8_t* p) {
    int32_t word;
    std::memcpy(&word, p, sizeof word);
    return {_mm512_set1_epi32(word)};
}

#if defined(__AVX512VNNI__)

constexpr int kByteOffset = 128;
DECODESTEP_INLINE i32x16 dot_nibbles(i32x16 sum, u8x64 w, i8x4 x) { return {_mm512_dpbusd_epi32(sum.v, w.v, x.v)}; }
DECODESTEP_INLINE i32x16 dot_bytes(i32x16 sum, u8x64 w, i8x4 x) { return dot_nibbles(sum, w, x); }

#else

// Pairs of products are added in sixteen bits, which hold 2 * 15 * 128, and 2 * 128 * 127, but not 2 * 255 * 127: bytes
// are taken as what they stand for, w - 128, the sign moved over to x.
constexpr int kByteOffset = 0;
DECODESTEP_INLINE i32x16 dot_nibbles(i32x16 sum, u8x64 w, i8x4 x) {
    const __m512i pairs = _mm512_madd_epi16(_mm512_maddubs_epi16(w.v, x.v), _mm512_set1_epi16(1));
    return {_mm512_add_epi32(sum.v, pairs)};
}
DECODESTEP_INLINE i32x16 dot_bytes(i32x16 sum, u8x64 w, i8x4 x) {
    const __m512i value = _mm512_xor_si512(w.v, _mm512_set1_epi8(-128));
    const __m512i signed_x = _mm512_mask_sub_epi8(x.v, _mm512_movepi8_mask(value), _mm512_setzero_si512(), x.v);
    return dot_nibbles(sum, {_mm512_abs_epi8(value)}, {signed_x});
}

#endif

#elif defined(__AVX2__)

struct u8x64 {
    __m256i low, high;
};
struct i8x4 {
    __m256i v;
};

DECODESTEP_INLINE u8x64 load_bytes(const uint8_t* p) {
    const auto* words = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
}
DECODESTEP_INLINE u8x64 low_halves(u8x64 a) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(a.low, mask), _mm256_and_si256(a.high, mask)};
}
DECODESTEP_INLINE u8x64 high_halves(u8x64 a) {
    return low_halves({_mm256_srli_epi32(a.low, 4), _mm256_srli_epi32(a.high, 4)});
}
DECODESTEP_INLINE i8x4 broadcast_four(const int8_t* p) {
    int32_t word;
    std::memcpy(&word, p, sizeof word);
    return {_mm256_set1_epi32(word)};
}

constexpr int kByteOffset = 0;
DECODESTEP_INLINE __m256i dot_pairs(__m256i sum, __m256i w, __m256i x) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}
DECODESTEP_INLINE i32x16 dot_nibbles(i32x16 sum, u8x64 w, i8x4 x) {
    return {dot_pairs(sum.low, w.low, x.v), dot_pairs(sum.high, w.high, x.v)};
}
// Sixteen bits do not hold 2 * 255 * 127: bytes are taken as what they stand for, w - 128, the sign moved over to x.
DECODESTEP_INLINE __m256i dot_signed(__m256i sum, __m256i w, __m256i x) {
    const __m256i value = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
    return dot_pairs(sum, _mm256_abs_epi8(value), _mm256_sign_epi8(x, value));
}
DECODESTEP_INLINE i32x16 dot_bytes(i32x16 sum, u8x64 w, i8x4 x) {
    return {dot_signed(sum.low, w.low, x.v), dot_signed(sum.high, w.high, x.v)};
}

#else

struct u8x64 {
    uint8_t v[4 * kLanes];
};
struct i8x4 {
    int8_t v[4];
};

DECODESTEP_INLINE u8x64 load_bytes(const uint8_t* p) {
    u8x64 r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
DECODESTEP_INLINE u8x64 low_halves(u8x64 a) {
    for (uint8_t& byte : a.v) byte &= 15;
    return a;
}
DECODESTEP_INLINE u8x64 high_halves(u8x64 a) {
    for (uint8_t& byte : a.v) byte >>= 4;
    return a;
}
DECODESTEP_INLINE i8x4 broadcast_four(const int8_t* p) { return {{p[0], p[1], p[2], p[3]}}; }

constexpr int kByteOffset = 128;
DECODESTEP_INLINE i32x16 dot_nibbles(i32x16 sum, u8x64 w, i8x4 x) {
    for (int i = 0; i < kLanes; ++i)
        for (int j = 0; j < 4; ++j) sum.v[i] += static_cast<uint32_t>(w.v[4 * i + j] * x.v[j]);
    return sum;
}
DECODESTEP_INLINE i32x16 dot_bytes(i32x16 sum, u8x64 w, i8x4 x) { return dot_nibbles(sum, w, x); }

#endif

}  // namespace decodestep::DECODESTEP_ISA
