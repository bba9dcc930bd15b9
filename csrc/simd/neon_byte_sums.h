// byte_sums.h for NEON.
#pragma once

namespace decodestep::DECODESTEP_BUILD {

// Whether weights of few bits are turned into bytes in memory before many tokens are multiplied by them.
constexpr bool kStoresBytes = true;
// How far ahead weights that are read once are prefetched.
constexpr size_t kPrefetchBytes = 2048;
// How many streams of memory one core reads faster than one.
constexpr size_t kStreams = 1;

// For each byte, below 16, one of sixteen.
DECODESTEP_INLINE u8x64 look_up(u8x64 a, const uint8_t* sixteen) {
    const uint8x16_t table = vld1q_u8(sixteen);
    return bytes_of(int_quarters([&](int q) DECODESTEP_INLINE_LAMBDA {
        return vreinterpretq_u32_u8(vqtbl1q_u8(table, vreinterpretq_u8_u32(a.v[q])));
    }));
}
DECODESTEP_INLINE i32x16 pairs_of(int8x16_t low, int8x16_t high) {
    return {{vreinterpretq_u32_s16(vmovl_s8(vget_low_s8(low))), vreinterpretq_u32_s16(vmovl_high_s8(low)),
             vreinterpretq_u32_s16(vmovl_s8(vget_low_s8(high))), vreinterpretq_u32_s16(vmovl_high_s8(high))}};
}
// Thirty-two signed bytes as pairs of int16.
DECODESTEP_INLINE i32x16 int8_pairs(const uint8_t* p) {
    return pairs_of(load_quarter<int8x16_t>(p), load_quarter<int8x16_t>(p + 16));
}
// Sixteen signed bytes at a, each with the one at b, as pairs of int16.
DECODESTEP_INLINE i32x16 byte_pairs(const uint8_t* a, const uint8_t* b) {
    const auto first = load_quarter<int8x16_t>(a), second = load_quarter<int8x16_t>(b);
    return pairs_of(vzip1q_s8(first, second), vzip2q_s8(first, second));
}
// sums + multiply_pairs(a, b).
DECODESTEP_INLINE i32x16 add_pair_products(i32x16 sums, i32x16 a, i32x16 b) { return sums + multiply_pairs(a, b); }

}  // namespace decodestep::DECODESTEP_BUILD

#include "simd/pair_sums.h"
