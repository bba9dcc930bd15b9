// Activations as products with panels read them: bytes with a scale for each 32 values, or float32.
#pragma once

#include <cmath>

#include "bytes.h"

namespace decodestep::DECODESTEP_ISA {

// Tokens of `in` values, a multiple of 32. Either form may be missing: it is then neither written nor read.
struct Activations {
    size_t in = 0;
    float* values = nullptr;
    int8_t* bytes = nullptr;
    // Of each block: the value of a unit, the sum of the bytes, and that sum times the unit.
    float *unit = nullptr, *total = nullptr;
    int32_t* sum = nullptr;

    size_t blocks() const { return in / 32; }
};

// Sixteen values in [-127, 127] to integers, and their sum. What is no number becomes zero; its unit says that it was
// none.
DECODESTEP_INLINE int32_t round_to_bytes(f32x16 x, int8_t* bytes) {
#if defined(__AVX512F__)
    const __m512i r = _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(x.v, x.v, _CMP_ORD_Q), x.v);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes), _mm512_cvtsepi32_epi8(r));
    return _mm512_reduce_add_epi32(r);
#else
    float rounded[kLanes];
    store(rounded, round_even(x));
    int32_t sum = 0;
    for (int i = 0; i < kLanes; ++i) {
        bytes[i] = rounded[i] == rounded[i] ? static_cast<int8_t>(rounded[i]) : int8_t{0};
        sum += bytes[i];
    }
    return sum;
#endif
}

// The largest magnitude; NaN if there is one.
DECODESTEP_INLINE float largest_magnitude(f32x16 a, f32x16 b) {
#if defined(__AVX512F__)
    // As integers, magnitudes are in order and NaN is above them all.
    const __m512i mask = _mm512_set1_epi32(0x7fffffff);
    const __m512i larger = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a.v), mask),
                                            _mm512_and_si512(_mm512_castps_si512(b.v), mask));
    const int32_t bits = _mm512_reduce_max_epi32(larger);
    float r;
    std::memcpy(&r, &bits, sizeof r);
    return r;
#else
    int32_t bits[2 * kLanes], most = 0;
    store(reinterpret_cast<float*>(bits), a);
    store(reinterpret_cast<float*>(bits + kLanes), b);
    for (const int32_t x : bits) most = (x & 0x7fffffff) > most ? x & 0x7fffffff : most;
    float r;
    std::memcpy(&r, &most, sizeof r);
    return r;
#endif
}

// Puts 32 values in place, block b of token t.
DECODESTEP_INLINE void put_block(const Activations& x, size_t t, size_t b, f32x16 first, f32x16 second) {
    if (x.values) {
        store(x.values + t * x.in + 32 * b, first);
        store(x.values + t * x.in + 32 * b + kLanes, second);
    }
    if (x.bytes) {
        const float most = largest_magnitude(first, second);
        // A block below 1e-36 has no reciprocal in float32: it counts as zeros.
        const f32x16 inverse = broadcast(most < 1e-36f ? 0.0f : 127.0f / most);
        int8_t* bytes = x.bytes + t * x.in + 32 * b;
        const size_t at = t * x.blocks() + b;
        const int32_t sum = round_to_bytes(first * inverse, bytes) + round_to_bytes(second * inverse, bytes + kLanes);
        x.unit[at] = most / 127.0f;
        x.sum[at] = sum;
        x.total[at] = x.unit[at] * static_cast<float>(sum);
    }
}

// Puts a row of `width` values, at most x.in, and zeros behind them.
inline void put_row(const Activations& x, size_t t, const float* row, size_t width) {
    for (size_t b = 0; b < x.blocks(); ++b) {
        const size_t left = width - 32 * b;
        if (left >= 32) {
            put_block(x, t, b, load(row + 32 * b), load(row + 32 * b + kLanes));
            continue;
        }
        float tail[32] = {};
        std::memcpy(tail, row + 32 * b, left * sizeof(float));
        put_block(x, t, b, load(tail), load(tail + kLanes));
    }
}

}  // namespace decodestep::DECODESTEP_ISA
