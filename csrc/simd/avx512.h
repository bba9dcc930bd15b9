// AVX-512 without dot-product instructions.
#pragma once

#include "simd/avx512_common.h"

namespace decodestep::DECODESTEP_BUILD {

// Products of bytes: sums of four unsigned bytes times four signed ones, exact.

// Weights of dot_bytes are stored as q + 128; this much of the 128 is left in the products, for the caller to subtract.
constexpr int kByteOffset = 0;
DECODESTEP_INLINE i32x16 dot_nibbles(i32x16 sums, u8x64 w, i8x4 x) {
    const __m512i pairs = _mm512_madd_epi16(_mm512_maddubs_epi16(w.v, x.v), _mm512_set1_epi16(1));
    return {_mm512_add_epi32(sums.v, pairs)};
}
// maddubs adds two products in sixteen bits, which hold 2 * 128 * 127 but not 2 * 255 * 127: so multiply the magnitude
// of q, and give its sign to x.
DECODESTEP_INLINE i32x16 dot_bytes(i32x16 sums, u8x64 w, i8x4 x) {
    const __m512i q = _mm512_xor_si512(w.v, _mm512_set1_epi8(-128));
    const __m512i signed_x = _mm512_mask_sub_epi8(x.v, _mm512_movepi8_mask(q), _mm512_setzero_si512(), x.v);
    return dot_nibbles(sums, {_mm512_abs_epi8(q)}, {signed_x});
}

}  // namespace decodestep::DECODESTEP_BUILD

#include "simd/without_bf16_products.h"
#include "simd/without_byte_products.h"
