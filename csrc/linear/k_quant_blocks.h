// GGUF's blocks of 256 values (K-quants): eight pieces of 32 values, each with a scale of its own that multiplies the
// float16 scale of the block.
#pragma once

#include "linear/row_block.h"

namespace decodestep::DECODESTEP_BUILD {

// Scale and minimum of piece j, six bits each, from twelve bytes. Pieces 4 to 7 have their low four bits in the last
// four bytes, and their upper two bits in the upper two bits of the first eight.
struct ScaleMin {
    int scale, minimum;
};

DECODESTEP_INLINE ScaleMin scale_min(const uint8_t* p, size_t j) {
    if (j < 4) return {p[j] & 63, p[j + 4] & 63};
    return {(p[j + 4] & 15) | (p[j - 4] >> 6) << 4, (p[j + 4] >> 4) | (p[j] >> 6) << 4};
}

// p: <f16 scale> <f16 minimum> <12 bytes of scales and minima>. Gives scale * s_j * q - minimum * m_j; the products
// with q are exact.
DECODESTEP_INLINE void scale_piece(const uint8_t* p, size_t j, u8x32 q, f32x16& a, f32x16& b) {
    const ScaleMin piece = scale_min(p + 4, j);
    const f32x16 scale = broadcast_f16(p) * broadcast(piece.scale),
                 minimum = broadcast_f16(p + 2) * broadcast(piece.minimum);
    const f32x32 values = from_u8(q);
    a = values.first * scale - minimum;
    b = values.second * scale - minimum;
}

// <f16 scale> <f16 minimum> <12 bytes of scales and minima> <128 bytes>: scale * s_j * q - minimum * m_j. Each 32 bytes
// hold two pieces, one in their low nibbles and one in their high nibbles.
template <>
struct RowBlock<Format::q4_k> {
    static DECODESTEP_INLINE void load(const uint8_t* p, size_t j, f32x16& a, f32x16& b) {
        scale_piece(p, j, bit_field(p + 16 + j / 2 * 32, j % 2 * 4, 15), a, b);
    }
};

// Q4_K with 32 bytes of fifth bits before the nibbles: bit j of each belongs to piece j.
template <>
struct RowBlock<Format::q5_k> {
    static DECODESTEP_INLINE void load(const uint8_t* p, size_t j, f32x16& a, f32x16& b) {
        const u8x32 low = bit_field(p + 48 + j / 2 * 32, j % 2 * 4, 15);
        scale_piece(p, j, join_nibbles(low, bit_field(p + 16, j, 1)), a, b);
    }
};

// <128 bytes of low four bits> <64 bytes of upper two bits> <16 signed scales> <f16 scale>: scale * s * (q - 32), with
// one s for 16 values. Each half of the block holds four pieces of 32: two in the low nibbles of its first and second
// 32 bytes, then two in their high nibbles.
template <>
struct RowBlock<Format::q6_k> {
    static DECODESTEP_INLINE void load(const uint8_t* p, size_t j, f32x16& a, f32x16& b) {
        const size_t half = j / 4, piece = j % 4;
        const u8x32 low = bit_field(p + half * 64 + piece % 2 * 32, piece / 2 * 4, 15);
        const auto* scales = reinterpret_cast<const int8_t*>(p + 192) + 2 * j;
        const f32x16 scale = broadcast_f16(p + 208), middle = broadcast(32.0f);
        const f32x32 values = from_u8(join_nibbles(low, bit_field(p + 128 + half * 32, 2 * piece, 3)));
        a = (values.first - middle) * (scale * broadcast(scales[0]));
        b = (values.second - middle) * (scale * broadcast(scales[1]));
    }
};

}  // namespace decodestep::DECODESTEP_BUILD
