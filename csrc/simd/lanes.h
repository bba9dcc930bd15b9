// What a search over sixteen lanes needs beside their arithmetic: comparisons, compaction, noise.
#pragma once

#include <bit>
#include <limits>

#include "random/random.h"
#include "simd/integers.h"

namespace decodestep::DECODESTEP_ISA {

using Mask = uint32_t;  // bit i stands for lane i

constexpr float kLog2E = 1.44269504f;
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

// 2^x within 2^-18 of it; below -126 no more than 2^-126, from 128 on +inf, and anything for NaN.
DECODESTEP_INLINE f32x16 exp2(f32x16 x) {
#if defined(__AVX512F__)
    const f32x16 r = {_mm512_reduce_ps(x.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};  // 0 for -inf
#else
    x = min(max(x, broadcast(-126.0f)), broadcast(128.0f));
    const f32x16 n = round_even(x - broadcast(0.5f)), r = x - n;
#endif
    f32x16 y = broadcast(0.013534137f);
    for (const float c : {0.05201149f, 0.24144277f, 0.69300383f, 1.0000026f}) y = fma(y, r, broadcast(c));
#if defined(__AVX512F__)
    return {_mm512_scalef_ps(y.v, x.v)};
#else
    return times_exp2(y, n);
#endif
}

// `decodestep::noise_bits` of sixteen tokens; `state` is what the record's seed and position leave, the same for all.
DECODESTEP_INLINE i32x16 noise_bits(uint32_t state, i32x16 tokens) {
    const i32x16 word = rotate_left<15>(tokens * broadcast_int(0xCC9E2D51u)) * broadcast_int(0x1B873593u);
    i32x16 h = rotate_left<13>(broadcast_int(state) ^ word) * broadcast_int(5u) + broadcast_int(0xE6546B64u);
    h = h ^ broadcast_int(16u);
    h = (h ^ shift_right<16>(h)) * broadcast_int(0x85EBCA6Bu);
    h = (h ^ shift_right<13>(h)) * broadcast_int(0xC2B2AE35u);
    return h ^ shift_right<16>(h);
}

}  // namespace decodestep::DECODESTEP_ISA
