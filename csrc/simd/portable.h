// Vectors of four lanes as compilers offer them for any machine: SSE2 on x86, NEON on ARM.
#pragma once

namespace decodestep::DECODESTEP_ISA {

constexpr int kVectorRegisters = 4;  // vectors that registers hold: sixteen of four lanes

// --- quarters: vectors of four lanes, as GCC and clang extend C++, which are registers of SSE2 and of NEON

constexpr int kQuarters = 4;
using f32x4 = float __attribute__((vector_size(16)));
using i32x4 = int32_t __attribute__((vector_size(16)));
using u32x4 = uint32_t __attribute__((vector_size(16)));

template <class To>
DECODESTEP_INLINE To load_quarter(const void* p) {
    To r;
    std::memcpy(&r, p, sizeof r);
    return r;
}
DECODESTEP_INLINE u32x4 bits_of(f32x4 a) { return std::bit_cast<u32x4>(a); }
DECODESTEP_INLINE f32x4 as_float(u32x4 a) { return std::bit_cast<f32x4>(a); }
DECODESTEP_INLINE u32x4 splat(uint32_t x) { return u32x4{x, x, x, x}; }
DECODESTEP_INLINE f32x4 splat(float x) { return f32x4{x, x, x, x}; }
DECODESTEP_INLINE f32x4 to_float(i32x4 a) { return __builtin_convertvector(a, f32x4); }
// Towards zero.
DECODESTEP_INLINE u32x4 to_int(f32x4 a) { return std::bit_cast<u32x4>(__builtin_convertvector(a, i32x4)); }
// All bits of a lane where the comparison is true.
DECODESTEP_INLINE u32x4 is_number(f32x4 a) { return std::bit_cast<u32x4>(a == a); }

// --- float32

struct f32x16 {
    f32x4 v[kQuarters];
};
struct f32x32 {
    f32x16 first, second;
};

// f(q) for each quarter, and f(i) for each lane. The operators that kernels consist of are written out instead: as
// lambdas they would take a fifth more of the compiler's time.
template <class F>
DECODESTEP_INLINE f32x16 quarters(F&& f) {
    return {{f(0), f(1), f(2), f(3)}};
}
template <class F>
DECODESTEP_INLINE f32x16 each(F&& f) {
    return quarters([&](int q) { return f32x4{f(4 * q), f(4 * q + 1), f(4 * q + 2), f(4 * q + 3)}; });
}

DECODESTEP_INLINE f32x16 broadcast(float x) {
    return quarters([=](int) { return splat(x); });
}
DECODESTEP_INLINE f32x16 load(const float* p) {
    return quarters([=](int q) { return load_quarter<f32x4>(p + 4 * q); });
}
DECODESTEP_INLINE void store(float* p, f32x16 a) { std::memcpy(p, a.v, sizeof a.v); }
DECODESTEP_INLINE f32x16 operator+(f32x16 a, f32x16 b) {
    return {{a.v[0] + b.v[0], a.v[1] + b.v[1], a.v[2] + b.v[2], a.v[3] + b.v[3]}};
}
DECODESTEP_INLINE f32x16 operator-(f32x16 a, f32x16 b) {
    return {{a.v[0] - b.v[0], a.v[1] - b.v[1], a.v[2] - b.v[2], a.v[3] - b.v[3]}};
}
DECODESTEP_INLINE f32x16 operator*(f32x16 a, f32x16 b) {
    return {{a.v[0] * b.v[0], a.v[1] * b.v[1], a.v[2] * b.v[2], a.v[3] * b.v[3]}};
}
DECODESTEP_INLINE f32x16 operator/(f32x16 a, f32x16 b) {
    return {{a.v[0] / b.v[0], a.v[1] / b.v[1], a.v[2] / b.v[2], a.v[3] / b.v[3]}};
}
// max and min return their second operand when one is NaN, on every target.
DECODESTEP_INLINE f32x16 max(f32x16 a, f32x16 b) {
    return {{a.v[0] > b.v[0] ? a.v[0] : b.v[0], a.v[1] > b.v[1] ? a.v[1] : b.v[1], a.v[2] > b.v[2] ? a.v[2] : b.v[2],
             a.v[3] > b.v[3] ? a.v[3] : b.v[3]}};
}
DECODESTEP_INLINE f32x16 min(f32x16 a, f32x16 b) {
    return {{a.v[0] < b.v[0] ? a.v[0] : b.v[0], a.v[1] < b.v[1] ? a.v[1] : b.v[1], a.v[2] < b.v[2] ? a.v[2] : b.v[2],
             a.v[3] < b.v[3] ? a.v[3] : b.v[3]}};
}
// Two roundings where the machine has no fused multiply-add: it would be a call of a library function for each lane.
DECODESTEP_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__FP_FAST_FMAF)
    return each([&](int i) { return __builtin_fmaf(a.v[i / 4][i % 4], b.v[i / 4][i % 4], c.v[i / 4][i % 4]); });
#else
    return a * b + c;
#endif
}
DECODESTEP_INLINE f32x4 magnitude(f32x4 a) { return as_float(bits_of(a) & splat(0x7fffffffu)); }
DECODESTEP_INLINE f32x16 magnitude(f32x16 a) {
    return {{magnitude(a.v[0]), magnitude(a.v[1]), magnitude(a.v[2]), magnitude(a.v[3])}};
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
// An exponent as a fraction in [0, 1] and a power for times_exp2.
struct Exponent {
    f32x16 fraction, whole;
};
DECODESTEP_INLINE Exponent split_exponent(f32x16 x) {
    x = min(max(x, broadcast(-126.0f)), broadcast(128.0f));
    const f32x16 n = round_even(x - broadcast(0.5f));
    return {x - n, n};
}
// Each even lane and the odd one after it, exchanged.
DECODESTEP_INLINE f32x16 swap_pairs(f32x16 a) {
    return quarters([&](int q) { return f32x4{a.v[q][1], a.v[q][0], a.v[q][3], a.v[q][2]}; });
}
// a - b in the even lanes, a + b in the odd ones.
DECODESTEP_INLINE f32x16 subtract_add(f32x16 a, f32x16 b) {
    const u32x4 even = {0x80000000u, 0, 0x80000000u, 0};  // a - b is a + (-b), to the bit
    return {{a.v[0] + as_float(bits_of(b.v[0]) ^ even), a.v[1] + as_float(bits_of(b.v[1]) ^ even),
             a.v[2] + as_float(bits_of(b.v[2]) ^ even), a.v[3] + as_float(bits_of(b.v[3]) ^ even)}};
}
// Each of eight values twice.
DECODESTEP_INLINE f32x16 load_twice(const float* p) {
    return quarters([=](int q) { return f32x4{p[2 * q], p[2 * q], p[2 * q + 1], p[2 * q + 1]}; });
}
// Both reductions fold the upper half onto the lower one: 8 + 8, 4 + 4, 2 + 2, 1 + 1, on every target.
DECODESTEP_INLINE float sum(f32x16 a) {
    const f32x4 four = (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
    return (four[0] + four[2]) + (four[1] + four[3]);
}
DECODESTEP_INLINE float largest(f32x16 a) {
    float r = a.v[0][0];
    for (int i = 1; i < kLanes; ++i) r = a.v[i / 4][i % 4] > r ? a.v[i / 4][i % 4] : r;
    return r;
}
// Keep values in registers, where compilers of other targets have to be told.
DECODESTEP_INLINE void keep_in_register(f32x16&) {}
DECODESTEP_INLINE void keep_scalar(uint64_t&) {}

// --- masks

// The bits of a mask that stand for the lanes of quarter q.
DECODESTEP_INLINE u32x4 mask_bits(int q) { return u32x4{1, 2, 4, 8} << 4 * q; }

// A lane that holds NaN is never at least anything.
DECODESTEP_INLINE Mask at_least(f32x16 a, f32x16 b) {
    u32x4 bits = {};
    for (int q = 0; q < kQuarters; ++q) bits |= std::bit_cast<u32x4>(a.v[q] >= b.v[q]) & mask_bits(q);
    return (bits[0] | bits[1]) | (bits[2] | bits[3]);
}
// The lanes of the mask, 0 in the others.
DECODESTEP_INLINE f32x16 select(Mask mask, f32x16 a) {
    return quarters([&](int q) {
        const u32x4 chosen = std::bit_cast<u32x4>((splat(mask) & mask_bits(q)) == mask_bits(q));
        return as_float(bits_of(a.v[q]) & chosen);
    });
}
// Writes the lanes of the mask one after the other, and the ids first + lane; there must be room for sixteen of each.
// Returns their number.
DECODESTEP_INLINE size_t compact(Mask mask, f32x16 values, int32_t first, float* scores, int32_t* ids) {
    float lanes[kLanes];
    store(lanes, values);
    size_t n = 0;
    for (; mask; mask &= mask - 1, ++n) {
        const int lane = std::countr_zero(mask);
        scores[n] = lanes[lane];
        ids[n] = first + lane;
    }
    return n;
}

// --- int32, which wraps around

struct i32x16 {
    u32x4 v[kQuarters];
};

template <class F>
DECODESTEP_INLINE i32x16 int_quarters(F&& f) {
    return {{f(0), f(1), f(2), f(3)}};
}

DECODESTEP_INLINE i32x16 broadcast_int(int32_t x) {
    return int_quarters([=](int) { return splat(static_cast<uint32_t>(x)); });
}
DECODESTEP_INLINE i32x16 load_bits(const void* p) {
    return int_quarters([=](int q) { return load_quarter<u32x4>(static_cast<const uint8_t*>(p) + 16 * q); });
}
DECODESTEP_INLINE void store_bits(void* p, i32x16 a) { std::memcpy(p, a.v, sizeof a.v); }
DECODESTEP_INLINE i32x16 operator+(i32x16 a, i32x16 b) {
    return {{a.v[0] + b.v[0], a.v[1] + b.v[1], a.v[2] + b.v[2], a.v[3] + b.v[3]}};
}
DECODESTEP_INLINE i32x16 operator*(i32x16 a, i32x16 b) {
    return {{a.v[0] * b.v[0], a.v[1] * b.v[1], a.v[2] * b.v[2], a.v[3] * b.v[3]}};
}
DECODESTEP_INLINE i32x16 operator&(i32x16 a, i32x16 b) {
    return {{a.v[0] & b.v[0], a.v[1] & b.v[1], a.v[2] & b.v[2], a.v[3] & b.v[3]}};
}
DECODESTEP_INLINE i32x16 operator|(i32x16 a, i32x16 b) {
    return {{a.v[0] | b.v[0], a.v[1] | b.v[1], a.v[2] | b.v[2], a.v[3] | b.v[3]}};
}
DECODESTEP_INLINE i32x16 operator^(i32x16 a, i32x16 b) {
    return {{a.v[0] ^ b.v[0], a.v[1] ^ b.v[1], a.v[2] ^ b.v[2], a.v[3] ^ b.v[3]}};
}
template <int bits>
DECODESTEP_INLINE i32x16 shift_left(i32x16 a) {
    return {{a.v[0] << bits, a.v[1] << bits, a.v[2] << bits, a.v[3] << bits}};
}
template <int bits>
DECODESTEP_INLINE i32x16 shift_right(i32x16 a) {
    return {{a.v[0] >> bits, a.v[1] >> bits, a.v[2] >> bits, a.v[3] >> bits}};
}
template <int bits>
DECODESTEP_INLINE i32x16 rotate_left(i32x16 a) {
    return shift_left<bits>(a) | shift_right<32 - bits>(a);
}
DECODESTEP_INLINE i32x4 as_signed(u32x4 a) { return std::bit_cast<i32x4>(a); }
DECODESTEP_INLINE i32x16 max(i32x16 a, i32x16 b) {
    return {{as_signed(a.v[0]) > as_signed(b.v[0]) ? a.v[0] : b.v[0],
             as_signed(a.v[1]) > as_signed(b.v[1]) ? a.v[1] : b.v[1],
             as_signed(a.v[2]) > as_signed(b.v[2]) ? a.v[2] : b.v[2],
             as_signed(a.v[3]) > as_signed(b.v[3]) ? a.v[3] : b.v[3]}};
}
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
DECODESTEP_INLINE i32x16 bits_of(f32x16 a) {
    return {{bits_of(a.v[0]), bits_of(a.v[1]), bits_of(a.v[2]), bits_of(a.v[3])}};
}
DECODESTEP_INLINE f32x16 as_float(i32x16 a) {
    return {{as_float(a.v[0]), as_float(a.v[1]), as_float(a.v[2]), as_float(a.v[3])}};
}
DECODESTEP_INLINE f32x16 to_float(i32x16 a) {
    return {{to_float(as_signed(a.v[0])), to_float(as_signed(a.v[1])), to_float(as_signed(a.v[2])),
             to_float(as_signed(a.v[3]))}};
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

}  // namespace decodestep::DECODESTEP_ISA

#include "simd/portable_narrow.h"
#include "simd/without_bf16_products.h"
#include "simd/without_byte_products.h"
