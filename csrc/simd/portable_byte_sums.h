// byte_sums.h for portable.h.
#pragma once

namespace decodestep::DECODESTEP_BUILD {

// Whether weights of few bits are turned into bytes in memory before many tokens are multiplied by them.
constexpr bool kStoresBytes = false;
// How far ahead weights that are read once are prefetched.
constexpr size_t kPrefetchBytes = 8192;
// How many streams of memory one core reads faster than one.
constexpr size_t kStreams = 1;

// For each byte, below 16, one of sixteen.
DECODESTEP_INLINE u8x64 look_up(u8x64 a, const uint8_t* sixteen) {
    uint8_t bytes[64];
    std::memcpy(bytes, a.v, sizeof bytes);
    for (uint8_t& byte : bytes) byte = sixteen[byte];
    return load_bytes(bytes);
}
// Thirty-two signed bytes as pairs of int16.
DECODESTEP_INLINE i32x16 int8_pairs(const uint8_t* p) {
    const i32x16 pairs = load_u16(p);
    return int_quarters([&](int q) { return odd_bytes((pairs.v[q] << 8 & splat(0xff00u)) | pairs.v[q] << 16); });
}

// Sixteen signed bytes at a, each with the one at b, as pairs of int16.
DECODESTEP_INLINE i32x16 byte_pairs(const uint8_t* a, const uint8_t* b) {
    const i32x16 first = load_u8(a), second = load_u8(b);
    return int_quarters([&](int q) { return odd_bytes(first.v[q] << 8 | second.v[q] << 24); });
}

// sums + multiply_pairs(a, b).
DECODESTEP_INLINE i32x16 add_pair_products(i32x16 sums, i32x16 a, i32x16 b) { return sums + multiply_pairs(a, b); }

}  // namespace decodestep::DECODESTEP_BUILD

#include "simd/pair_sums.h"
