// What a search over sixteen float32 lanes needs beside the arithmetic of simd.h: comparisons, compaction, 32-bit
// integers.
#pragma once

#include <bit>
#include <limits>

#include "random.h"
#include "simd.h"

namespace decodestep::DECODESTEP_ISA {

using Mask = uint32_t;  // bit i stands for lane i

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// A lane that holds NaN is never greater or equal.
DECODESTEP_INLINE Mask at_least(f32x16 a, f32x16 b) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ);
#elif defined(__AVX2__)
    const int low = _mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_GE_OQ));
    const int high = _mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_GE_OQ));
    return static_cast<Mask>(low | high << 8);
#else
    Mask mask = 0;
    for (int i = 0; i < kLanes; ++i) mask |= static_cast<Mask>(a.v[i] >= b.v[i]) << i;
    return mask;
#endif
}

DECODESTEP_INLINE f32x16 magnitude(f32x16 a) {
#if defined(__AVX512F__)
    return {_mm512_abs_ps(a.v)};
#elif defined(__AVX2__)
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
#else
    return each([&](int i) { return __builtin_fabsf(a.v[i]); });
#endif
}

// The lanes of the mask, 0 in the others.
DECODESTEP_INLINE f32x16 select(Mask mask, f32x16 a) {
#if defined(__AVX512F__)
    return {_mm512_maskz_mov_ps(static_cast<__mmask16>(mask), a.v)};
#elif defined(__AVX2__)
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128), all = _mm256_set1_epi32(static_cast<int>(mask));
    const __m256i low = _mm256_cmpeq_epi32(_mm256_and_si256(all, bit), bit);
    const __m256i high = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_srli_epi32(all, 8), bit), bit);
    return {_mm256_and_ps(a.low, _mm256_castsi256_ps(low)), _mm256_and_ps(a.high, _mm256_castsi256_ps(high))};
#else
    return each([&](int i) { return mask >> i & 1 ? a.v[i] : 0.0f; });
#endif
}

constexpr Mask kAllLanes = 0xFFFF;

// The largest of n values, -inf if there is none; NaN is passed over.
DECODESTEP_INLINE float largest(const float* values, size_t n) {
    f32x16 best = broadcast(kNothing);
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) best = max(load(values + i), best);
    float top = largest(best);
    for (; i < n; ++i) top = values[i] > top ? values[i] : top;
    return top;
}

// Writes the lanes of the mask one behind the other, and the ids first + lane; there must be room for sixteen of each.
DECODESTEP_INLINE size_t compact(Mask mask, f32x16 values, int32_t first, float* scores, int32_t* ids) {
#if defined(__AVX512F__)
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const auto m = static_cast<__mmask16>(mask);
    _mm512_storeu_ps(scores, _mm512_maskz_compress_ps(m, values.v));
    _mm512_storeu_si512(ids, _mm512_maskz_compress_epi32(m, _mm512_add_epi32(lane, _mm512_set1_epi32(first))));
    return static_cast<size_t>(std::popcount(mask));
#else
    float lanes[kLanes];
    store(lanes, values);
    size_t n = 0;
    for (; mask; mask &= mask - 1, ++n) {
        const int lane = std::countr_zero(mask);
        scores[n] = lanes[lane];
        ids[n] = first + lane;
    }
    return n;
#endif
}

#if defined(__AVX512F__)

struct u32x16 {
    __m512i v;
};

DECODESTEP_INLINE u32x16 load_ids(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
DECODESTEP_INLINE u32x16 broadcast_bits(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
DECODESTEP_INLINE u32x16 operator+(u32x16 a, u32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
DECODESTEP_INLINE u32x16 operator*(u32x16 a, u32x16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
DECODESTEP_INLINE u32x16 operator^(u32x16 a, u32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <int N>
DECODESTEP_INLINE u32x16 shift_right(u32x16 a) {
    return {_mm512_srli_epi32(a.v, N)};
}
template <int N>
DECODESTEP_INLINE u32x16 rotate_left(u32x16 a) {
    return {_mm512_rol_epi32(a.v, N)};
}
DECODESTEP_INLINE f32x16 to_float(u32x16 a) { return {_mm512_cvtepu32_ps(a.v)}; }

#elif defined(__AVX2__)

struct u32x16 {
    __m256i low, high;
};

DECODESTEP_INLINE u32x16 load_ids(const int32_t* p) {
    const auto* half = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(half), _mm256_loadu_si256(half + 1)};
}
DECODESTEP_INLINE u32x16 broadcast_bits(uint32_t x) {
    return {_mm256_set1_epi32(static_cast<int>(x)), _mm256_set1_epi32(static_cast<int>(x))};
}
DECODESTEP_INLINE u32x16 operator+(u32x16 a, u32x16 b) {
    return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
DECODESTEP_INLINE u32x16 operator*(u32x16 a, u32x16 b) {
    return {_mm256_mullo_epi32(a.low, b.low), _mm256_mullo_epi32(a.high, b.high)};
}
DECODESTEP_INLINE u32x16 operator^(u32x16 a, u32x16 b) {
    return {_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)};
}
template <int N>
DECODESTEP_INLINE u32x16 shift_right(u32x16 a) {
    return {_mm256_srli_epi32(a.low, N), _mm256_srli_epi32(a.high, N)};
}
template <int N>
DECODESTEP_INLINE u32x16 rotate_left(u32x16 a) {
    return {_mm256_or_si256(_mm256_slli_epi32(a.low, N), _mm256_srli_epi32(a.low, 32 - N)),
            _mm256_or_si256(_mm256_slli_epi32(a.high, N), _mm256_srli_epi32(a.high, 32 - N))};
}
DECODESTEP_INLINE __m256 to_float(__m256i a) {
    const __m256 high = _mm256_cvtepi32_ps(_mm256_srli_epi32(a, 16));
    const __m256 low = _mm256_cvtepi32_ps(_mm256_and_si256(a, _mm256_set1_epi32(0xFFFF)));
    return _mm256_add_ps(_mm256_mul_ps(high, _mm256_set1_ps(65536.0f)), low);
}
DECODESTEP_INLINE f32x16 to_float(u32x16 a) { return {to_float(a.low), to_float(a.high)}; }

#else

struct u32x16 {
    uint32_t v[kLanes];
};

template <class F>
DECODESTEP_INLINE u32x16 each_bits(F&& f) {
    u32x16 r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = f(i);
    return r;
}

DECODESTEP_INLINE u32x16 load_ids(const int32_t* p) {
    return each_bits([=](int i) { return static_cast<uint32_t>(p[i]); });
}
DECODESTEP_INLINE u32x16 broadcast_bits(uint32_t x) {
    return each_bits([=](int) { return x; });
}
DECODESTEP_INLINE u32x16 operator+(u32x16 a, u32x16 b) {
    return each_bits([&](int i) { return a.v[i] + b.v[i]; });
}
DECODESTEP_INLINE u32x16 operator*(u32x16 a, u32x16 b) {
    return each_bits([&](int i) { return a.v[i] * b.v[i]; });
}
DECODESTEP_INLINE u32x16 operator^(u32x16 a, u32x16 b) {
    return each_bits([&](int i) { return a.v[i] ^ b.v[i]; });
}
template <int N>
DECODESTEP_INLINE u32x16 shift_right(u32x16 a) {
    return each_bits([&](int i) { return a.v[i] >> N; });
}
template <int N>
DECODESTEP_INLINE u32x16 rotate_left(u32x16 a) {
    return each_bits([&](int i) { return std::rotl(a.v[i], N); });
}
DECODESTEP_INLINE f32x16 to_float(u32x16 a) {
    return each([&](int i) { return static_cast<float>(a.v[i]); });
}

#endif

// 2^x for x < 128 within 2^-18 of it; below -126 no more than 2^-126, and anything for NaN.
DECODESTEP_INLINE f32x16 exp2(f32x16 x) {
#if defined(__AVX512F__)
    const f32x16 r = {_mm512_reduce_ps(x.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};  // 0 for -inf
#else
    x = max(x, broadcast(-126.0f));
    const f32x16 n = round_even(x - broadcast(0.5f)), r = x - n;
#endif
    f32x16 y = broadcast(0.013534137f);
    for (const float c : {0.05201149f, 0.24144277f, 0.69300383f, 1.0000026f}) y = fma(y, r, broadcast(c));
#if defined(__AVX512F__)
    return {_mm512_scalef_ps(y.v, x.v)};
#else
    return y * exp2i(n);
#endif
}

// `decodestep::noise_bits` of sixteen tokens; `state` is what the record's seed and position leave, the same for all.
DECODESTEP_INLINE u32x16 noise_bits(uint32_t state, u32x16 tokens) {
    const u32x16 word = rotate_left<15>(tokens * broadcast_bits(0xCC9E2D51u)) * broadcast_bits(0x1B873593u);
    u32x16 h = rotate_left<13>(broadcast_bits(state) ^ word) * broadcast_bits(5u) + broadcast_bits(0xE6546B64u);
    h = h ^ broadcast_bits(16u);
    h = (h ^ shift_right<16>(h)) * broadcast_bits(0x85EBCA6Bu);
    h = (h ^ shift_right<13>(h)) * broadcast_bits(0xC2B2AE35u);
    return h ^ shift_right<16>(h);
}

}  // namespace decodestep::DECODESTEP_ISA
