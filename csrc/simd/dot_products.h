// Products of groups of inputs with sixteen outputs. A group is four bytes: one float32, two bfloat16 or four int8. A
// token's group times the same group of sixteen outputs is added to sixteen sums.
//
// A Dot has the types Token, Weights and Sums, and says how each is read and how they are multiplied. int8 sums are
// exact, so they have the same bits on every target; of bfloat16, see fallbacks.h.
#pragma once

#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {

struct F32Sums {
    static constexpr bool kOffset = false;
    using Sums = f32x16;
    static DECODESTEP_INLINE Sums load_sums(const float* p) { return load(p); }
    static DECODESTEP_INLINE void store_sums(float* p, Sums sums) { store(p, sums); }
    static DECODESTEP_INLINE Sums zero() { return broadcast(0.0f); }
};

struct F32Dot : F32Sums {
    using Token = f32x16;
    using Weights = f32x16;
    static DECODESTEP_INLINE Token token(const void* p) {
        float value;
        std::memcpy(&value, p, sizeof value);
        return broadcast(value);
    }
    static DECODESTEP_INLINE Weights weights(const void* p) { return load(static_cast<const float*>(p)); }
    static DECODESTEP_INLINE Sums add(Sums sums, Token x, Weights w) { return fma(x, w, sums); }
};

// One group in every lane.
DECODESTEP_INLINE i32x16 broadcast_group(const void* p) {
    int32_t group;
    std::memcpy(&group, p, sizeof group);
    return broadcast_int(group);
}

struct Bf16Dot : F32Sums {
    using Token = Bf16Pairs;
    using Weights = Bf16Pairs;
    static DECODESTEP_INLINE Token token(const void* p) { return bf16_pairs(broadcast_group(p)); }
    static DECODESTEP_INLINE Weights weights(const void* p) { return bf16_pairs(load_bits(p)); }
    static DECODESTEP_INLINE Sums add(Sums sums, const Token& x, const Weights& w) { return add_products(sums, x, w); }
};

// The sums lie in memory as int32 in the place of floats. Where kOffset is true, the instruction reads a token's values
// as unsigned: 128 is added to them, so the sums have to begin at -128 times the sums of the weights.
struct I8Dot {
    static constexpr bool kOffset = kUnsignedTokens;
    using Token = I8Quads;
    using Weights = I8Quads;
    using Sums = i32x16;
    static DECODESTEP_INLINE Sums load_sums(const float* p) { return load_bits(p); }
    static DECODESTEP_INLINE void store_sums(float* p, Sums sums) { store_bits(p, sums); }
    static DECODESTEP_INLINE Sums zero() { return broadcast_int(0); }
    static DECODESTEP_INLINE Token token(const void* p) {
        const i32x16 group = broadcast_group(p);
        return i8_quads(kOffset ? group ^ broadcast_int(static_cast<int32_t>(0x80808080u)) : group);
    }
    static DECODESTEP_INLINE Token ones() { return i8_quads(broadcast_int(0x01010101)); }
    static DECODESTEP_INLINE Weights weights(const void* p) { return i8_quads(load_bits(p)); }
    static DECODESTEP_INLINE Sums add(Sums sums, const Token& x, const Weights& w) { return add_products(sums, x, w); }
};

// A group of inputs of sixteen outputs, gathered from its rows.
DECODESTEP_INLINE i32x16 group_of(const float* const (&rows)[1], size_t at) { return load_bits(rows[0] + at); }
DECODESTEP_INLINE i32x16 group_of(const uint16_t* const (&rows)[2], size_t at) {
    return load_u16(rows[0] + at) | shift_left<16>(load_u16(rows[1] + at));
}
DECODESTEP_INLINE i32x16 group_of(const int8_t* const (&rows)[4], size_t at) {
    return (load_u8(rows[0] + at) | shift_left<8>(load_u8(rows[1] + at))) |
           (shift_left<16>(load_u8(rows[2] + at)) | shift_left<24>(load_u8(rows[3] + at)));
}

}  // namespace decodestep::DECODESTEP_BUILD
