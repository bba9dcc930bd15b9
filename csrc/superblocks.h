// GGUF's blocks of 256 values, of which eight pieces of 32 have scales of their own under common ones.
#pragma once

#include "simd.h"

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

DECODESTEP_INLINE void scaled(const int8_t (&q)[32], f32x16 scale, f32x16 minimum, f32x16& a, f32x16& b) {
    a = from_i8(q) * scale - minimum;  // the product is exact
    b = from_i8(q + 16) * scale - minimum;
}

// <f16 scale> <f16 minimum> <12 bytes of scales and minima> <128 bytes>: scale * s_j * q - minimum * m_j. Each 32 bytes
// hold two pieces in their halves.
struct Q4_K {
    static constexpr size_t bytes = 144, pieces = 8;
    static DECODESTEP_INLINE void load(const uint8_t* p, size_t j, f32x16& a, f32x16& b) {
        const ScaleMin piece = scale_min(p + 4, j);
        const uint8_t* nibbles = p + 16 + j / 2 * 32;
        const int shift = j % 2 * 4;
        int8_t q[32];
        for (int i = 0; i < 32; ++i) q[i] = static_cast<int8_t>(nibbles[i] >> shift & 15);
        scaled(q, broadcast_f16(p) * broadcast(piece.scale), broadcast_f16(p + 2) * broadcast(piece.minimum), a, b);
    }
};

// Q4_K with 32 bytes of fifth bits before the halves: bit j of each for piece j.
struct Q5_K {
    static constexpr size_t bytes = 176, pieces = 8;
    static DECODESTEP_INLINE void load(const uint8_t* p, size_t j, f32x16& a, f32x16& b) {
        const ScaleMin piece = scale_min(p + 4, j);
        const uint8_t *high = p + 16, *nibbles = p + 48 + j / 2 * 32;
        const int shift = j % 2 * 4, bit = static_cast<int>(j);
        int8_t q[32];
        for (int i = 0; i < 32; ++i) q[i] = static_cast<int8_t>((nibbles[i] >> shift & 15) | (high[i] >> bit & 1) << 4);
        scaled(q, broadcast_f16(p) * broadcast(piece.scale), broadcast_f16(p + 2) * broadcast(piece.minimum), a, b);
    }
};

// <128 bytes of low halves> <64 bytes of upper pairs of bits> <16 signed scales> <f16 scale>: scale * s * (q - 32), a
// scale for 16 values. Each half of the block holds four pieces: in low halves, first and second 32 bytes, then in high
// ones.
struct Q6_K {
    static constexpr size_t bytes = 210, pieces = 8;
    static DECODESTEP_INLINE void load(const uint8_t* p, size_t j, f32x16& a, f32x16& b) {
        const size_t half = j / 4, piece = j % 4;
        const uint8_t *low = p + half * 64 + piece % 2 * 32, *high = p + 128 + half * 32;
        const auto* scales = reinterpret_cast<const int8_t*>(p + 192) + 2 * j;
        const int shift = piece / 2 * 4, pair = static_cast<int>(2 * piece);
        int8_t q[32];
        for (int i = 0; i < 32; ++i)
            q[i] = static_cast<int8_t>(((low[i] >> shift & 15) | (high[i] >> pair & 3) << 4) - 32);
        const f32x16 scale = broadcast_f16(p + 208);
        a = from_i8(q) * (scale * broadcast(scales[0]));
        b = from_i8(q + 16) * (scale * broadcast(scales[1]));
    }
};

}  // namespace decodestep::DECODESTEP_ISA
