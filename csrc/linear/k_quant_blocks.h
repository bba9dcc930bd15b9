// GGUF's blocks of 256 values (K-quants): eight pieces of 32 values. Each piece, or each half of one, has a scale of
// its own that multiplies the float16 scale of the block.
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

// Two bits of each of 32 values, of 64 bytes: each half of a block has 32 bytes, of which piece j takes the j-th two
// bits.
DECODESTEP_INLINE u8x32 two_bits(const uint8_t* p, size_t j) { return bit_field(p + j / 4 * 32, j % 4 * 2, 3); }

// <16 bytes: scale s and minimum m, four bits each> <64 bytes of two bits> <f16 scale> <f16 minimum>:
// scale * s * q - minimum * m, with one s and m for 16 values.
template <>
struct RowBlock<Format::q2_k> {
    static DECODESTEP_INLINE void load(const uint8_t* p, size_t j, f32x16& a, f32x16& b) {
        const f32x16 scale = broadcast_f16(p + 80), minimum = broadcast_f16(p + 82);
        const f32x32 values = from_u8(two_bits(p + 16, j));
        const auto scaled = [&](f32x16 q, int numbers) DECODESTEP_INLINE_LAMBDA {
            return q * (scale * broadcast(numbers & 15)) - minimum * broadcast(numbers >> 4);
        };
        a = scaled(values.first, p[2 * j]);
        b = scaled(values.second, p[2 * j + 1]);
    }
};

// Scale i of the sixteen of Q3_K, six bits, stored plus 32: the lower four in a nibble of eight bytes, the upper two in
// four more bytes.
DECODESTEP_INLINE int q3_k_scale(const uint8_t* p, size_t i) {
    const int low = p[i % 8] >> i / 8 * 4 & 15, high = p[8 + i % 4] >> i / 4 * 2 & 3;
    return (low | high << 4) - 32;
}

// <32 bytes of third bits> <64 bytes of two bits> <12 bytes of scales s> <f16 scale>: scale * s * (q - 4), with one s
// for 16 values. Bit j of the first 32 bytes belongs to piece j.
template <>
struct RowBlock<Format::q3_k> {
    static DECODESTEP_INLINE void load(const uint8_t* p, size_t j, f32x16& a, f32x16& b) {
        const f32x16 scale = broadcast_f16(p + 108), four = broadcast(4.0f);
        const f32x32 low = from_u8(two_bits(p + 32, j)), third = from_u8(bit_field(p, j, 1));
        const auto scaled = [&](f32x16 lower, f32x16 upper, size_t i) DECODESTEP_INLINE_LAMBDA {
            return (lower + upper * four - four) * (scale * broadcast(q3_k_scale(p + 96, i)));
        };
        a = scaled(low.first, third.first, 2 * j);
        b = scaled(low.second, third.second, 2 * j + 1);
    }
};

}  // namespace decodestep::DECODESTEP_BUILD
