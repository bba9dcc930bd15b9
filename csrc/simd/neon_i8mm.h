// NEON with dot products of bytes, of unsigned with signed ones too. The matrix products of this extension are not
// used: they take two outputs of eight inputs, where panels have sixteen of four side by side.
#pragma once

#include "simd/neon_byte_products.h"

namespace decodestep::DECODESTEP_BUILD {

DECODESTEP_INLINE i32x16 dot_nibbles(i32x16 sums, u8x64 w, i8x4 x) {
    return int_quarters([&](int q) DECODESTEP_INLINE_LAMBDA {
        const int32x4_t before = as_signed(sums.v[q]);
        return vreinterpretq_u32_s32(vusdotq_s32(before, vreinterpretq_u8_u32(w.v[q]), x.v));
    });
}
// Weights of dot_bytes are stored as q + 128; this much of the 128 is left in the products, for the caller to subtract.
constexpr int kByteOffset = 128;
DECODESTEP_INLINE i32x16 dot_bytes(i32x16 sums, u8x64 w, i8x4 x) { return dot_nibbles(sums, w, x); }

}  // namespace decodestep::DECODESTEP_BUILD
