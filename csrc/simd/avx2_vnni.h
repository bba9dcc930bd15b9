// AVX2 with dot products of bytes (AVX-VNNI).
#pragma once

#include "simd/avx2_common.h"

namespace decodestep::DECODESTEP_BUILD {

// sums + the products of sixteen groups of four unsigned bytes with four signed ones.
DECODESTEP_INLINE i32x16 dot_quads(i32x16 sums, i32x16 a, i32x16 b) {
    return {_mm256_dpbusd_avx_epi32(sums.low, a.low, b.low), _mm256_dpbusd_avx_epi32(sums.high, a.high, b.high)};
}
DECODESTEP_INLINE i32x16 dot_nibbles(i32x16 sums, u8x64 w, i8x4 x) {
    return dot_quads(sums, {w.low, w.high}, {x.v, x.v});
}

}  // namespace decodestep::DECODESTEP_BUILD

#include "simd/with_byte_products.h"
#include "simd/without_bf16_products.h"
