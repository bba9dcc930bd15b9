// GGUF's less common blocks of four and five bits, for products with rows: their values are computed one by one.
#pragma once

#include "linear/row_block.h"
#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {

// The values of the nibbles of IQ4_NL and IQ4_XS, and twice the values of those of MXFP4.
constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// scale * value(nibble i, i) for 32 nibbles in the order of values; value returns an int8.
template <class Value>
DECODESTEP_INLINE void scale_nibbles(const uint8_t* nibbles, f32x16 scale, Value&& value, f32x16& a, f32x16& b) {
    int8_t q[32];
    for (int i = 0; i < 16; ++i) {
        q[i] = static_cast<int8_t>(value(nibbles[i] & 15, i));
        q[16 + i] = static_cast<int8_t>(value(nibbles[i] >> 4, 16 + i));
    }
    a = from_i8(q) * scale;
    b = from_i8(q + 16) * scale;
}

// Value i of 32 with its fifth bit, bit i of the four bytes at p.
struct FiveBits {
    uint32_t fifth;
    explicit FiveBits(const uint8_t* p) { std::memcpy(&fifth, p, sizeof fifth); }
    int operator()(int nibble, int i) const { return nibble | static_cast<int>(fifth >> i & 1) << 4; }
};

// <f16 scale> <4 bytes of fifth bits> <16 bytes of nibbles>: scale * (q - 16)
template <>
struct RowBlock<Format::q5_0> {
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        const FiveBits q(p + 2);
        scale_nibbles(p + 6, broadcast_f16(p), [&](int nibble, int i) { return q(nibble, i) - 16; }, a, b);
    }
};

// <f16 scale> <f16 minimum> <4 bytes of fifth bits> <16 bytes of nibbles>: scale * q + minimum
template <>
struct RowBlock<Format::q5_1> {
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        scale_nibbles(p + 8, broadcast_f16(p), FiveBits(p + 4), a, b);
        const f32x16 minimum = broadcast_f16(p + 2);
        a = a + minimum;
        b = b + minimum;
    }
};

// <f16 scale> <16 bytes of nibbles>: scale * kIq4Values[q]
template <>
struct RowBlock<Format::iq4_nl> {
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        scale_nibbles(p + 2, broadcast_f16(p), [](int nibble, int) { return kIq4Values[nibble]; }, a, b);
    }
};

// The scale of 32 values of IQ4_XS: six bits, stored plus 32. The lower four bits are a nibble, the upper two in two
// bytes.
DECODESTEP_INLINE int iq4_xs_scale(const uint8_t* p, size_t j) {
    const int low = p[4 + j / 2] >> j % 2 * 4 & 15, high = p[2 + j / 4] >> j % 4 * 2 & 3;
    return (low | high << 4) - 32;
}

// <f16 scale> <2 bytes> <4 bytes> of eight scales s, <128 bytes of nibbles>: scale * s * kIq4Values[q]
template <>
struct RowBlock<Format::iq4_xs> {
    static DECODESTEP_INLINE void load(const uint8_t* p, size_t j, f32x16& a, f32x16& b) {
        const f32x16 scale = broadcast_f16(p) * broadcast(static_cast<float>(iq4_xs_scale(p, j)));
        scale_nibbles(p + 8 + 16 * j, scale, [](int nibble, int) { return kIq4Values[nibble]; }, a, b);
    }
};

// Half the powers of two that bytes e stand for: 2^(e - 128), those of e < 2 subnormal.
DECODESTEP_INLINE f32x16 half_powers(i32x16 e) {
    return as_float(max(shift_left<23>(e + broadcast_int(-1)), shift_left<21>(e + broadcast_int(1))));
}

// <1 byte e> <16 bytes of nibbles>: 2^(e - 128) * kMxfp4Values[q]
template <>
struct RowBlock<Format::mxfp4> {
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        scale_nibbles(
            p + 1, half_powers(broadcast_int(p[0])), [](int nibble, int) { return kMxfp4Values[nibble]; }, a, b);
    }
};

}  // namespace decodestep::DECODESTEP_BUILD
