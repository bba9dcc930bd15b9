// The hash of random/random.h, for sixteen tokens at once.
#pragma once

#include "random/random.h"
#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {

// `decodestep::noise_bits` of sixteen tokens; `state` is the hash of the record's seed and position, which they share.
DECODESTEP_INLINE i32x16 noise_bits(uint32_t state, i32x16 tokens) {
    const i32x16 word = rotate_left<15>(tokens * broadcast_int(0xCC9E2D51u)) * broadcast_int(0x1B873593u);
    i32x16 h = rotate_left<13>(broadcast_int(state) ^ word) * broadcast_int(5u) + broadcast_int(0xE6546B64u);
    h = h ^ broadcast_int(16u);
    h = (h ^ shift_right<16>(h)) * broadcast_int(0x85EBCA6Bu);
    h = (h ^ shift_right<13>(h)) * broadcast_int(0xC2B2AE35u);
    return h ^ shift_right<16>(h);
}

}  // namespace decodestep::DECODESTEP_BUILD
