// GGUF's blocks of 256 values, of which eight pieces of 32 have scales of their own under common ones.
#pragma once

#include "simd/simd.h"

namespace decodestep::DECODESTEP_ISA {

// Scale and minimum of piece j from twelve bytes: six bits each, the later four's upper bits in the upper bits of the
// first eight bytes.
struct ScaleMin {
    int scale, minimum;
};

DECODESTEP_INLINE ScaleMin scale_min(const uint8_t* p, size_t j) {
    if (j < 4) return {p[j] & 63, p[j + 4] & 63};
    return {(p[j + 4] & 15) | (p[j - 4] >> 6) << 4, (p[j + 4] >> 4) | (p[j] >> 6) << 4};
}

// Some bits of 32 bytes: (p[i] >> shift) & mask.
struct Bits {
#if defined(__AVX2__)
    __m256i v;
#else
    uint8_t v[32];
#endif
};

DECODESTEP_INLINE Bits take_bits(const uint8_t* p, size_t shift, int mask) {
#if defined(__AVX2__)
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i shifted = _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(static_cast<int>(shift)));
    return {_mm256_and_si256(shifted, _mm256_set1_epi8(static_cast<char>(mask)))};
#else
    Bits r;
    for (int i = 0; i < 32; ++i) r.v[i] = static_cast<uint8_t>(p[i] >> shift & mask);
    return r;
#endif
}

// Four low bits and the bits above them.
DECODESTEP_INLINE Bits join(Bits low, Bits high) {
#if defined(__AVX2__)
    return {_mm256_or_si256(low.v, _mm256_slli_epi16(high.v, 4))};
#else
    for (int i = 0; i < 32; ++i) low.v[i] |= static_cast<uint8_t>(high.v[i] << 4);
    return low;
#endif
}

DECODESTEP_INLINE void widen_bits(Bits q, f32x16& a, f32x16& b) {
#if defined(__AVX2__)
    a = from_u8(_mm256_castsi256_si128(q.v));
    b = from_u8(_mm256_extracti128_si256(q.v, 1));
#else
    a = each([&](int i) { return static_cast<float>(q.v[i]); });
    b = each([&](int i) { return static_cast<float>(q.v[i + 16]); });
#endif
}

// Behind two common halves: scale * s_j * q - minimum * m_j. The products with q are exact.
DECODESTEP_INLINE void scale_piece(const uint8_t* p, size_t j, Bits q, f32x16& a, f32x16& b) {
    const ScaleMin piece = scale_min(p + 4, j);
    const f32x16 scale = broadcast_f16(p) * broadcast(piece.scale),
                 minimum = broadcast_f16(p + 2) * broadcast(piece.minimum);
    widen_bits(q, a, b);
    a = a * scale - minimum;
    b = b * scale - minimum;
}

// <f16 scale> <f16 minimum> <12 bytes of scales and minima> <128 bytes>: scale * s_j * q - minimum * m_j. Each 32 bytes
// hold two pieces in their halves.
struct Q4_K {
    static constexpr size_t bytes = 144, pieces = 8;
    static DECODESTEP_INLINE void load(const uint8_t* p, size_t j, f32x16& a, f32x16& b) {
        scale_piece(p, j, take_bits(p + 16 + j / 2 * 32, j % 2 * 4, 15), a, b);
    }
};

// Q4_K with 32 bytes of fifth bits before the halves: bit j of each for piece j.
struct Q5_K {
    static constexpr size_t bytes = 176, pieces = 8;
    static DECODESTEP_INLINE void load(const uint8_t* p, size_t j, f32x16& a, f32x16& b) {
        const Bits low = take_bits(p + 48 + j / 2 * 32, j % 2 * 4, 15);
        scale_piece(p, j, join(low, take_bits(p + 16, j, 1)), a, b);
    }
};

// <128 bytes of low halves> <64 bytes of upper pairs of bits> <16 signed scales> <f16 scale>: scale * s * (q - 32), a
// scale for 16 values. Each half of the block holds four pieces: in low halves, first and second 32 bytes, then in high
// ones.
struct Q6_K {
    static constexpr size_t bytes = 210, pieces = 8;
    static DECODESTEP_INLINE void load(const uint8_t* p, size_t j, f32x16& a, f32x16& b) {
        const size_t half = j / 4, piece = j % 4;
        const Bits low = take_bits(p + half * 64 + piece % 2 * 32, piece / 2 * 4, 15);
        const auto* scales = reinterpret_cast<const int8_t*>(p + 192) + 2 * j;
        const f32x16 scale = broadcast_f16(p + 208), middle = broadcast(32.0f);
        widen_bits(join(low, take_bits(p + 128 + half * 32, 2 * piece, 3)), a, b);
        a = (a - middle) * (scale * broadcast(scales[0]));
        b = (b - middle) * (scale * broadcast(scales[1]));
    }
};

}  // namespace decodestep::DECODESTEP_ISA
