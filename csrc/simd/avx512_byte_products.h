// Products of bytes of the targets with AVX-512 and VNNI.
#pragma once

#include "simd/avx512_common.h"

namespace decodestep::DECODESTEP_BUILD {

// sums + the products of sixteen groups of four unsigned bytes with four signed ones.
DECODESTEP_INLINE i32x16 dot_quads(i32x16 sums, i32x16 a, i32x16 b) { return {_mm512_dpbusd_epi32(sums.v, a.v, b.v)}; }
DECODESTEP_INLINE i32x16 dot_nibbles(i32x16 sums, u8x64 w, i8x4 x) { return dot_quads(sums, {w.v}, {x.v}); }

}  // namespace decodestep::DECODESTEP_BUILD

#include "simd/with_byte_products.h"
