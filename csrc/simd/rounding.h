// The roundings of the specified operators: to bfloat16, to int8, and to int8 with one scale for a row. Plain loops
// that the compiler makes vectors of; included by kernels that are compiled once for each instruction set.
#pragma once

#include "simd/simd.h"

namespace decodestep::DECODESTEP_ISA {

struct Bf16 {
    uint16_t bits;
};

DECODESTEP_INLINE uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

DECODESTEP_INLINE float float_of(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// Half to even; NaN stays NaN.
DECODESTEP_INLINE Bf16 to_bf16(float value) {
    const uint32_t bits = bits_of(value), even = bits + 0x7fff + (bits >> 16 & 1);
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    return {static_cast<uint16_t>(nan ? bits >> 16 | 0x40 : even >> 16)};
}

DECODESTEP_INLINE float widen(float value) { return value; }
DECODESTEP_INLINE float widen(Bf16 value) { return float_of(uint32_t{value.bits} << 16); }
DECODESTEP_INLINE void put(float value, float* out) { *out = value; }
DECODESTEP_INLINE void put(float value, Bf16* out) { *out = to_bf16(value); }

// `value` as it comes back from memory of the type Real.
template <class Real>
DECODESTEP_INLINE float rounded(float value) {
    Real stored;
    put(value, &stored);
    return widen(stored);
}

template <class Real>
DECODESTEP_INLINE void put_all(const float* values, size_t n, Real* out) {
    for (size_t i = 0; i < n; ++i) put(values[i], out + i);
}

template <class Real>
DECODESTEP_INLINE void widen_all(const Real* values, size_t n, float* out) {
    for (size_t i = 0; i < n; ++i) out[i] = widen(values[i]);
}

// Sums of products of bfloat16. The instruction would take subnormals for zeros, but where it is, those that multiply
// have left none.
DECODESTEP_INLINE void put_sums(f32x16 sums, Bf16* out) {
#if defined(__AVX512BF16__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sums.v)));
#else
    float lanes[kLanes];
    store(lanes, sums);
    put_all(lanes, kLanes, out);
#endif
}

// n is a multiple of 16.
DECODESTEP_INLINE void put_sums(const float* sums, size_t n, Bf16* out) {
    for (size_t i = 0; i < n; i += kLanes) put_sums(load(sums + i), out + i);
}

DECODESTEP_INLINE f32x16 load(const Bf16* p) { return from_bf16(p); }

// Half to even, saturating; NaN gives 0.
DECODESTEP_INLINE int8_t to_int8(float value) {
    const float whole = __builtin_rintf(value == value ? value : 0.0f);
    return static_cast<int8_t>(static_cast<int32_t>(whole < -128.0f ? -128.0f : whole > 127.0f ? 127.0f : whole));
}

// The same for sixteen, in instructions that compilers do not find behind the choices.
DECODESTEP_INLINE void put_int8(f32x16 values, int8_t* out) {
    values = min(broadcast(127.0f), max(broadcast(-128.0f), values));  // NaN stays
#if defined(__AVX512F__)
    const __mmask16 numbers = _mm512_cmp_ps_mask(values.v, values.v, _CMP_ORD_Q);
    const __m512i whole = _mm512_maskz_cvtps_epi32(numbers, values.v);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(whole));
#elif defined(__AVX2__)
    const auto whole = [](__m256 v) { return _mm256_cvtps_epi32(_mm256_and_ps(v, _mm256_cmp_ps(v, v, _CMP_ORD_Q))); };
    const __m256i low = whole(values.low), high = whole(values.high);
    const auto words = [](__m256i v) {
        return _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    };
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_packs_epi16(words(low), words(high)));
#else
    for (int i = 0; i < kLanes; ++i) out[i] = to_int8(values.v[i]);
#endif
}

template <class Real>
DECODESTEP_INLINE void put_int8(const Real* values, size_t n, float factor, int8_t* out) {
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) put_int8(load(values + i) * broadcast(factor), out + i);
    for (; i < n; ++i) out[i] = to_int8(widen(values[i]) * factor);
}

DECODESTEP_INLINE void put_int8(const float* values, size_t n, const float* factors, int8_t* out) {
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) put_int8(load(values + i) * load(factors + i), out + i);
    for (; i < n; ++i) out[i] = to_int8(values[i] * factors[i]);
}

// Half away from zero twice, to float16 and to an integer: what the device's conversion of a small float32 does.
inline int8_t to_int8_away(float value) {
    if (!(value == value)) return 0;
    const float magnitude = __builtin_fabsf(value);
    int exponent;
    __builtin_frexpf(magnitude, &exponent);
    const float unit = __builtin_ldexpf(1.0f, exponent - 11 < -24 ? -24 : exponent - 11);
    const float half = __builtin_floorf(magnitude / unit + 0.5f) * unit;
    return to_int8(__builtin_copysignf(__builtin_floorf(half + 0.5f), value));
}

// The largest magnitude; NaN where there is one, for their bits are larger than those of infinity.
template <class Real>
DECODESTEP_INLINE float largest_magnitude(const Real* values, size_t n) {
    uint32_t most = 0;
    for (size_t i = 0; i < n; ++i) {
        const uint32_t bits = bits_of(widen(values[i])) & 0x7fffffff;
        most = bits > most ? bits : most;
    }
    return float_of(most);
}

// q = round(value * 127 / largest), and returns the scale largest / 127; a row of zeros has scale 0.
template <class Real>
inline float quantise_row(const Real* values, size_t n, bool half_away, int8_t* q) {
    const float largest = largest_magnitude(values, n), factor = largest == 0.0f ? 0.0f : 127.0f / largest;
    if (half_away)
        for (size_t i = 0; i < n; ++i) q[i] = to_int8_away(widen(values[i]) * factor);
    else
        put_int8(values, n, factor, q);
    return largest / 127.0f;
}

}  // namespace decodestep::DECODESTEP_ISA
