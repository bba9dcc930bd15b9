// The roundings of the specified operators: to bfloat16, to int8, and to int8 with one scale for a row. Plain loops
// that the compiler makes vectors of; included by kernels that are compiled once for each instruction set.
#pragma once

#include "simd.h"

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

// Half to even, saturating; NaN gives 0.
DECODESTEP_INLINE int8_t to_int8(float value) {
    const float whole = __builtin_rintf(value == value ? value : 0.0f);
    return static_cast<int8_t>(static_cast<int32_t>(whole < -128.0f ? -128.0f : whole > 127.0f ? 127.0f : whole));
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
DECODESTEP_INLINE float largest_magnitude(const float* values, size_t n) {
    uint32_t most = 0;
    for (size_t i = 0; i < n; ++i) {
        const uint32_t bits = bits_of(values[i]) & 0x7fffffff;
        most = bits > most ? bits : most;
    }
    return float_of(most);
}

// q = round(value * 127 / largest), and returns the scale largest / 127; a row of zeros has scale 0.
inline float quantise_row(const float* values, size_t n, bool half_away, int8_t* q) {
    const float largest = largest_magnitude(values, n), factor = largest == 0.0f ? 0.0f : 127.0f / largest;
    if (half_away)
        for (size_t i = 0; i < n; ++i) q[i] = to_int8_away(values[i] * factor);
    else
        for (size_t i = 0; i < n; ++i) q[i] = to_int8(values[i] * factor);
    return largest / 127.0f;
}

}  // namespace decodestep::DECODESTEP_ISA
