// ByteSums of AVX-512 without dot products: in sixteen bits, two a lane.
#pragma once

namespace decodestep::DECODESTEP_BUILD {

using ByteSums = i32x16;
constexpr int kByteSumsHold = 32767 / (2 * 127);
constexpr bool kWideSums = false;
DECODESTEP_INLINE ByteSums starting_at(int32_t words) { return broadcast_int(words); }
DECODESTEP_INLINE ByteSums first_bytes(u8x64 w, i8x4 x) { return {_mm512_maddubs_epi16(w.v, x.v)}; }
DECODESTEP_INLINE void add_bytes(ByteSums& sums, u8x64 w, i8x4 x) {
    sums.v = _mm512_add_epi16(sums.v, _mm512_maddubs_epi16(w.v, x.v));
}
DECODESTEP_INLINE i32x16 total(ByteSums sums) { return multiply_pairs(sums, {_mm512_set1_epi16(1)}); }

// Factors lie in both halves of their lane, so that the sum of a lane's two products costs no more than the sum alone.
DECODESTEP_INLINE i32x16 factors(const uint8_t* p) {
    const i32x16 bytes = load_u8(p);
    return bytes | shift_left<16>(bytes);
}
DECODESTEP_INLINE i32x16 first_factors(i32x16 pairs) {
    const i32x16 first = pairs & broadcast_int(0xffff);
    return first | shift_left<16>(first);
}
DECODESTEP_INLINE i32x16 second_factors(i32x16 pairs) {
    const i32x16 second = shift_right<16>(pairs);
    return second | shift_left<16>(second);
}
using ByteProducts = i32x16;
DECODESTEP_INLINE ByteProducts total(ByteSums sums, i32x16 factors) { return multiply_pairs(sums, factors); }
DECODESTEP_INLINE ByteProducts add_total(ByteProducts products, ByteSums sums, i32x16 factors) {
    return products + multiply_pairs(sums, factors);
}

}  // namespace decodestep::DECODESTEP_BUILD

#include "simd/stored_bytes.h"
