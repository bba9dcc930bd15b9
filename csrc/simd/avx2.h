// AVX2 without dot-product instructions.
#pragma once

#include "simd/avx2_common.h"

namespace decodestep::DECODESTEP_BUILD {

// Products of bytes: sums of four unsigned bytes times four signed ones, exact.

// Weights of dot_bytes are stored as q + 128; this much of the 128 is left in the products, for the caller to subtract.
constexpr int kByteOffset = 0;
// In one piece of assembly, for the same reason as in avx2_narrow_byte_sums.h.
DECODESTEP_INLINE __m256i dot_pairs(__m256i sums, __m256i w, __m256i x) {
    __m256i products;
    asm("vpmaddubsw %3, %2, %1\n\tvpmaddwd %4, %1, %1\n\tvpaddd %1, %0, %0"
        : "+x"(sums), "=&x"(products)
        : "x"(w), "x"(x), "x"(_mm256_set1_epi16(1)));
    return sums;
}
// maddubs adds two products in sixteen bits, which hold 2 * 128 * 127 but not 2 * 255 * 127: so multiply the magnitude
// of q, and give its sign to x.
DECODESTEP_INLINE __m256i dot_signed(__m256i sums, __m256i w, __m256i x) {
    const __m256i q = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
    return dot_pairs(sums, _mm256_abs_epi8(q), _mm256_sign_epi8(x, q));
}
DECODESTEP_INLINE i32x16 dot_bytes(i32x16 sums, u8x64 w, i8x4 x) {
    return {dot_signed(sums.low, w.low, x.v), dot_signed(sums.high, w.high, x.v)};
}

}  // namespace decodestep::DECODESTEP_BUILD

#include "simd/without_bf16_products.h"
#include "simd/without_byte_products.h"
