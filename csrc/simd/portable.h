// Any machine, in plain C++, with the compilers' vector extensions, which map to SSE2 and NEON.
#pragma once

#include "simd/quarters.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr int kVectorRegisters = 4;  // vectors that registers hold: sixteen of four lanes

// Float32.

// Towards zero.
DECODESTEP_INLINE u32x4 to_int(f32x4 a) { return std::bit_cast<u32x4>(__builtin_convertvector(a, i32x4)); }
// All bits of a lane where the comparison is true.
DECODESTEP_INLINE u32x4 is_number(f32x4 a) { return std::bit_cast<u32x4>(a == a); }

// Two roundings where the machine has no fused multiply-add: it would be a call of a library function for each lane.
DECODESTEP_INLINE Register fma(Register a, Register b, Register c) {
#if defined(__FP_FAST_FMAF)
    for (int i = 0; i < 4; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#else
    return a * b + c;
#endif
}
DECODESTEP_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
    return {{fma(a.v[0], b.v[0], c.v[0]), fma(a.v[1], b.v[1], c.v[1]), fma(a.v[2], b.v[2], c.v[2]),
             fma(a.v[3], b.v[3], c.v[3])}};
}
// Adding 2^23 and subtracting it again leaves no fraction; what is larger has none, and NaN stays.
DECODESTEP_INLINE f32x16 round_even(f32x16 a) {
    return quarters([&](int q) {
        const u32x4 sign = bits_of(a.v[q]) & splat(0x80000000u);
        const f32x4 size = magnitude(a.v[q]), whole = (size + splat(0x1p23f)) - splat(0x1p23f);
        return as_float(bits_of(size < splat(0x1p23f) ? whole : size) | sign);
    });
}
// a * 2^n for integral n in [-126, 127].
DECODESTEP_INLINE f32x16 times_exp2(f32x16 a, f32x16 n) {
    return quarters([&](int q) { return a.v[q] * as_float((to_int(n.v[q]) + splat(127u)) << 23 & is_number(n.v[q])); });
}
DECODESTEP_INLINE float largest(f32x16 a) {
    float r = a.v[0][0];
    for (int i = 1; i < kLanes; ++i) r = a.v[i / 4][i % 4] > r ? a.v[i / 4][i % 4] : r;
    return r;
}
// A lane that holds NaN is never at least anything.
DECODESTEP_INLINE Mask at_least(f32x16 a, f32x16 b) {
    u32x4 bits = {};
    for (int q = 0; q < kQuarters; ++q) bits |= std::bit_cast<u32x4>(a.v[q] >= b.v[q]) & mask_bits(q);
    return (bits[0] | bits[1]) | (bits[2] | bits[3]);
}
// Keep values in registers, where compilers of other targets have to be told.
DECODESTEP_INLINE void keep_in_register(Register&) {}
DECODESTEP_INLINE void keep_in_register(f32x16&) {}
DECODESTEP_INLINE void keep_scalar(uint64_t&) {}

// Int32.

DECODESTEP_INLINE int32_t sum(i32x16 a) {
    const u32x4 four = (a.v[0] + a.v[1]) + (a.v[2] + a.v[3]);
    return static_cast<int32_t>(four[0] + four[1] + four[2] + four[3]);
}
DECODESTEP_INLINE int32_t largest(i32x16 a) {
    int32_t most = static_cast<int32_t>(a.v[0][0]);
    for (int i = 1; i < kLanes; ++i) {
        const auto x = static_cast<int32_t>(a.v[i / 4][i % 4]);
        most = x > most ? x : most;
    }
    return most;
}
DECODESTEP_INLINE f32x16 unsigned_to_float(i32x16 a) {
    return quarters([&](int q) {  // both parts and the product are exact: one rounding
        return to_float(as_signed(a.v[q] >> 16)) * splat(65536.0f) + to_float(as_signed(a.v[q] & splat(0xffffu)));
    });
}
// To nearest, ties to even; 0 for NaN. Magnitudes are below 2^31.
DECODESTEP_INLINE i32x16 round_to_int(f32x16 a) {
    a = round_even(a);
    return {{to_int(a.v[0]) & is_number(a.v[0]), to_int(a.v[1]) & is_number(a.v[1]), to_int(a.v[2]) & is_number(a.v[2]),
             to_int(a.v[3]) & is_number(a.v[3])}};
}

}  // namespace decodestep::DECODESTEP_BUILD

#include "simd/portable_narrow.h"
#include "simd/split_exponent.h"
#include "simd/without_bf16_products.h"
#include "simd/without_byte_products.h"
