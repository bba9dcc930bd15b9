// A vector as four vectors of four lanes, in the vector extensions of GCC and clang: registers of SSE2 and of NEON.
// Shared by portable.h and neon.h.
#pragma once

#include "simd/lanes.h"

namespace decodestep::DECODESTEP_BUILD {

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
DECODESTEP_INLINE i32x4 as_signed(u32x4 a) { return std::bit_cast<i32x4>(a); }
DECODESTEP_INLINE u32x4 splat(uint32_t x) { return u32x4{x, x, x, x}; }
DECODESTEP_INLINE f32x4 splat(float x) { return f32x4{x, x, x, x}; }
DECODESTEP_INLINE f32x4 to_float(i32x4 a) { return __builtin_convertvector(a, f32x4); }

// Float32.

struct f32x16 {
    f32x4 v[kQuarters];
};
struct f32x32 {
    f32x16 first, second;
};

// f(q) for each quarter. The operators that kernels consist of are written out instead: as lambdas they would take a
// fifth more compile time.
template <class F>
DECODESTEP_INLINE f32x16 quarters(F&& f) {
    return {{f(0), f(1), f(2), f(3)}};
}

// One of the registers of a vector, for kernels that would hold too many whole vectors at a time.
using Register = f32x4;
DECODESTEP_INLINE Register load_register(const float* p) { return load_quarter<f32x4>(p); }
DECODESTEP_INLINE void store_register(float* p, Register a) { std::memcpy(p, &a, sizeof a); }

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
DECODESTEP_INLINE f32x4 max(f32x4 a, f32x4 b) { return a > b ? a : b; }
DECODESTEP_INLINE f32x4 min(f32x4 a, f32x4 b) { return a < b ? a : b; }
DECODESTEP_INLINE f32x16 max(f32x16 a, f32x16 b) {
    return {{max(a.v[0], b.v[0]), max(a.v[1], b.v[1]), max(a.v[2], b.v[2]), max(a.v[3], b.v[3])}};
}
DECODESTEP_INLINE f32x16 min(f32x16 a, f32x16 b) {
    return {{min(a.v[0], b.v[0]), min(a.v[1], b.v[1]), min(a.v[2], b.v[2]), min(a.v[3], b.v[3])}};
}
DECODESTEP_INLINE f32x4 magnitude(f32x4 a) { return as_float(bits_of(a) & splat(0x7fffffffu)); }
DECODESTEP_INLINE f32x16 magnitude(f32x16 a) {
    return {{magnitude(a.v[0]), magnitude(a.v[1]), magnitude(a.v[2]), magnitude(a.v[3])}};
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

// Masks.

// The bits of a mask that stand for the lanes of quarter q.
DECODESTEP_INLINE u32x4 mask_bits(int q) { return u32x4{1, 2, 4, 8} << 4 * q; }

// The lanes of the mask, 0 in the others.
DECODESTEP_INLINE f32x16 select(Mask mask, f32x16 a) {
    return quarters([&](int q) {
        const u32x4 chosen = std::bit_cast<u32x4>((splat(mask) & mask_bits(q)) == mask_bits(q));
        return as_float(bits_of(a.v[q]) & chosen);
    });
}

// Int32, which wraps around.

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
DECODESTEP_INLINE u32x4 max(u32x4 a, u32x4 b) { return as_signed(a) > as_signed(b) ? a : b; }
DECODESTEP_INLINE i32x16 max(i32x16 a, i32x16 b) {
    return {{max(a.v[0], b.v[0]), max(a.v[1], b.v[1]), max(a.v[2], b.v[2]), max(a.v[3], b.v[3])}};
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

// Narrower types in memory.

// The lower and the upper of the two bfloat16 that each lane holds.
DECODESTEP_INLINE f32x16 low_bf16(i32x16 a) { return as_float(shift_left<16>(a)); }
DECODESTEP_INLINE f32x16 high_bf16(i32x16 a) { return as_float(a & broadcast_int(static_cast<int32_t>(0xffff0000u))); }

// Bytes.

struct u8x64 {
    u32x4 v[kQuarters];
};

DECODESTEP_INLINE i32x16 words_of(u8x64 a) { return {{a.v[0], a.v[1], a.v[2], a.v[3]}}; }
DECODESTEP_INLINE u8x64 bytes_of(i32x16 a) { return {{a.v[0], a.v[1], a.v[2], a.v[3]}}; }
DECODESTEP_INLINE u8x64 load_bytes(const uint8_t* p) { return bytes_of(load_bits(p)); }
DECODESTEP_INLINE u8x64 low_nibbles(u8x64 a) { return bytes_of(words_of(a) & broadcast_int(0x0f0f0f0f)); }
DECODESTEP_INLINE u8x64 high_nibbles(u8x64 a) {
    return bytes_of(shift_right<4>(words_of(a)) & broadcast_int(0x0f0f0f0f));
}

}  // namespace decodestep::DECODESTEP_BUILD
