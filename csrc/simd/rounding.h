// The roundings of the specified operators: to bfloat16, to int8, and to int8 with one scale for a row.
#pragma once

#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {

using decodestep::to_float;
DECODESTEP_INLINE float to_float(float value) { return value; }
DECODESTEP_INLINE void convert(float value, float* out) { *out = value; }
DECODESTEP_INLINE void convert(float value, Bf16* out) { *out = to_bf16(value); }
DECODESTEP_INLINE void convert(float value, F16* out) { *out = to_f16(value); }

// `value` after a store to memory of type T and a load from there.
template <class T>
DECODESTEP_INLINE float rounded(float value) {
    T stored;
    convert(value, &stored);
    return to_float(stored);
}

template <class From, class To>
DECODESTEP_INLINE void convert(const From* values, size_t n, To* out) {
    for (size_t i = 0; i < n; ++i) convert(to_float(values[i]), out + i);
}

// Sixteen values; subnormals stay what they are on every tier, other than those of store_sums.
DECODESTEP_INLINE void convert(f32x16 values, Bf16* out) {
    float lanes[kLanes];
    store(lanes, values);
    convert(lanes, kLanes, out);
}

// Sums of products of bfloat16; n is a multiple of 16.
DECODESTEP_INLINE void store_sums(Bf16* out, const float* sums, size_t n) {
    for (size_t i = 0; i < n; i += kLanes) store_sums(out + i, load(sums + i));
}

// To nearest, ties to even, saturating; 0 for NaN.
DECODESTEP_INLINE int8_t to_int8(float value) {
    const float whole = __builtin_rintf(value == value ? value : 0.0f);
    return static_cast<int8_t>(static_cast<int32_t>(whole < -128.0f ? -128.0f : whole > 127.0f ? 127.0f : whole));
}

// The same for sixteen, in instructions that compilers do not find for the scalar form.
DECODESTEP_INLINE void put_int8(f32x16 values, int8_t* out) {
    store_i8(out, round_to_int(min(broadcast(127.0f), max(broadcast(-128.0f), values))));  // both keep NaN
}

template <class T>
DECODESTEP_INLINE void put_int8(const T* values, size_t n, float factor, int8_t* out) {
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) put_int8(load(values + i) * broadcast(factor), out + i);
    for (; i < n; ++i) out[i] = to_int8(to_float(values[i]) * factor);
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

// The bits of magnitudes: as integers they are in the same order, and NaN is above infinity.
DECODESTEP_INLINE i32x16 magnitude_bits(f32x16 a) { return bits_of(a) & broadcast_int(0x7fffffff); }

// The largest magnitude of two vectors; NaN if there is one.
DECODESTEP_INLINE float largest_magnitude(f32x16 a, f32x16 b) {
    return std::bit_cast<float>(largest(max(magnitude_bits(a), magnitude_bits(b))));
}

// The largest magnitude of n values; NaN if there is one.
template <class T>
DECODESTEP_INLINE float largest_magnitude(const T* values, size_t n) {
    uint32_t most = 0;
    for (size_t i = 0; i < n; ++i) {
        const uint32_t bits = std::bit_cast<uint32_t>(to_float(values[i])) & 0x7fffffff;
        most = bits > most ? bits : most;
    }
    return std::bit_cast<float>(most);
}

// q = round(value * 127 / largest), and returns the scale largest / 127; a row of zeros has scale 0.
template <class T>
inline float quantise_row(const T* values, size_t n, bool half_away, int8_t* q) {
    const float largest = largest_magnitude(values, n), factor = largest == 0.0f ? 0.0f : 127.0f / largest;
    if (half_away)
        for (size_t i = 0; i < n; ++i) q[i] = to_int8_away(to_float(values[i]) * factor);
    else
        put_int8(values, n, factor, q);
    return largest / 127.0f;
}

}  // namespace decodestep::DECODESTEP_BUILD
