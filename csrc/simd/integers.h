// Sixteen 32-bit integers, which wrap around.
#pragma once

#include <bit>

#include "simd/simd.h"

namespace decodestep::DECODESTEP_ISA {

#if defined(__AVX512F__)

struct i32x16 {
    __m512i v;
};

DECODESTEP_INLINE i32x16 broadcast_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
DECODESTEP_INLINE i32x16 load_bits(const void* p) { return {_mm512_loadu_si512(p)}; }
DECODESTEP_INLINE void store_bits(void* p, i32x16 a) { _mm512_storeu_si512(p, a.v); }
DECODESTEP_INLINE i32x16 operator+(i32x16 a, i32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
DECODESTEP_INLINE i32x16 operator*(i32x16 a, i32x16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
DECODESTEP_INLINE i32x16 operator|(i32x16 a, i32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
DECODESTEP_INLINE i32x16 operator^(i32x16 a, i32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <int bits>
DECODESTEP_INLINE i32x16 shift_left(i32x16 a) {
    return {_mm512_slli_epi32(a.v, bits)};
}
template <int bits>
DECODESTEP_INLINE i32x16 shift_right(i32x16 a) {
    return {_mm512_srli_epi32(a.v, bits)};
}
template <int bits>
DECODESTEP_INLINE i32x16 rotate_left(i32x16 a) {
    return {_mm512_rol_epi32(a.v, bits)};
}
DECODESTEP_INLINE f32x16 to_float(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
DECODESTEP_INLINE f32x16 unsigned_to_float(i32x16 a) { return {_mm512_cvtepu32_ps(a.v)}; }

#elif defined(__AVX2__)

struct i32x16 {
    __m256i low, high;
};

DECODESTEP_INLINE i32x16 broadcast_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
DECODESTEP_INLINE i32x16 load_bits(const void* p) {
    const auto* halves = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
DECODESTEP_INLINE void store_bits(void* p, i32x16 a) {
    auto* halves = static_cast<__m256i*>(p);
    _mm256_storeu_si256(halves, a.low);
    _mm256_storeu_si256(halves + 1, a.high);
}
DECODESTEP_INLINE i32x16 operator+(i32x16 a, i32x16 b) {
    return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
DECODESTEP_INLINE i32x16 operator*(i32x16 a, i32x16 b) {
    return {_mm256_mullo_epi32(a.low, b.low), _mm256_mullo_epi32(a.high, b.high)};
}
DECODESTEP_INLINE i32x16 operator|(i32x16 a, i32x16 b) {
    return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
}
DECODESTEP_INLINE i32x16 operator^(i32x16 a, i32x16 b) {
    return {_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)};
}
template <int bits>
DECODESTEP_INLINE i32x16 shift_left(i32x16 a) {
    return {_mm256_slli_epi32(a.low, bits), _mm256_slli_epi32(a.high, bits)};
}
template <int bits>
DECODESTEP_INLINE i32x16 shift_right(i32x16 a) {
    return {_mm256_srli_epi32(a.low, bits), _mm256_srli_epi32(a.high, bits)};
}
template <int bits>
DECODESTEP_INLINE i32x16 rotate_left(i32x16 a) {
    return shift_left<bits>(a) | shift_right<32 - bits>(a);
}
DECODESTEP_INLINE f32x16 to_float(i32x16 a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
DECODESTEP_INLINE f32x16 unsigned_to_float(i32x16 a) {
    const __m256i half = _mm256_set1_epi32(0xFFFF);
    const i32x16 low = {_mm256_and_si256(a.low, half), _mm256_and_si256(a.high, half)};
    return to_float(shift_right<16>(a)) * broadcast(65536.0f) + to_float(low);
}

#else

struct i32x16 {
    uint32_t v[kLanes];
};

template <class F>
DECODESTEP_INLINE i32x16 each_int(F&& f) {
    i32x16 r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = f(i);
    return r;
}

DECODESTEP_INLINE i32x16 broadcast_int(int32_t x) {
    return each_int([=](int) { return static_cast<uint32_t>(x); });
}
DECODESTEP_INLINE i32x16 load_bits(const void* p) {
    i32x16 r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
DECODESTEP_INLINE void store_bits(void* p, i32x16 a) { std::memcpy(p, a.v, sizeof a.v); }
DECODESTEP_INLINE i32x16 operator+(i32x16 a, i32x16 b) {
    return each_int([&](int i) { return a.v[i] + b.v[i]; });
}
DECODESTEP_INLINE i32x16 operator*(i32x16 a, i32x16 b) {
    return each_int([&](int i) { return a.v[i] * b.v[i]; });
}
DECODESTEP_INLINE i32x16 operator|(i32x16 a, i32x16 b) {
    return each_int([&](int i) { return a.v[i] | b.v[i]; });
}
DECODESTEP_INLINE i32x16 operator^(i32x16 a, i32x16 b) {
    return each_int([&](int i) { return a.v[i] ^ b.v[i]; });
}
template <int bits>
DECODESTEP_INLINE i32x16 shift_left(i32x16 a) {
    return each_int([&](int i) { return a.v[i] << bits; });
}
template <int bits>
DECODESTEP_INLINE i32x16 shift_right(i32x16 a) {
    return each_int([&](int i) { return a.v[i] >> bits; });
}
template <int bits>
DECODESTEP_INLINE i32x16 rotate_left(i32x16 a) {
    return each_int([&](int i) { return std::rotl(a.v[i], bits); });
}
DECODESTEP_INLINE f32x16 to_float(i32x16 a) {
    return each([&](int i) { return static_cast<float>(static_cast<int32_t>(a.v[i])); });
}
DECODESTEP_INLINE f32x16 unsigned_to_float(i32x16 a) {
    return each([&](int i) { return static_cast<float>(a.v[i]); });
}

#endif

}  // namespace decodestep::DECODESTEP_ISA
