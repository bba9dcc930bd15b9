// What the NEON targets with dot products of bytes share.
#pragma once

#include "simd/neon_common.h"

namespace decodestep::DECODESTEP_BUILD {

// sums + the products of four groups of four bytes.
DECODESTEP_INLINE u32x4 dot_signed(u32x4 sums, int8x16_t a, int8x16_t b) {
    return vreinterpretq_u32_s32(vdotq_s32(as_signed(sums), a, b));
}

// Products of groups: see without_byte_products.h.
using I8Quads = i32x16;
constexpr bool kUnsignedTokens = false;
DECODESTEP_INLINE I8Quads i8_quads(i32x16 bits) { return bits; }
DECODESTEP_INLINE i32x16 add_products(i32x16 sums, const I8Quads& x, const I8Quads& w) {
    return int_quarters([&](int q) DECODESTEP_INLINE_LAMBDA {
        return dot_signed(sums.v[q], vreinterpretq_s8_u32(x.v[q]), vreinterpretq_s8_u32(w.v[q]));
    });
}

}  // namespace decodestep::DECODESTEP_BUILD
