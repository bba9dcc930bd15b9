// Any machine, in plain C++, with the compilers' vector extensions, which map to SSE2 and NEON.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "simd/quarters.h"

namespace decodestep::DECODESTEP_BUILD {

// The constants of a target: see target.h.
constexpr int kVectorRegisters = 4;
constexpr bool kStoresBytes = false;
constexpr size_t kPrefetchBytes = 8192;
constexpr size_t kStreams = 1;
constexpr bool kSplitsBf16 = false;

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

// Narrower types in memory.

DECODESTEP_INLINE i32x16 load_u16(const void* p) {
    uint16_t h[kLanes];
    std::memcpy(h, p, sizeof h);
    return int_quarters([&](int q) { return u32x4{h[4 * q], h[4 * q + 1], h[4 * q + 2], h[4 * q + 3]}; });
}
DECODESTEP_INLINE i32x16 load_u8(const void* p) {
    const auto* b = static_cast<const uint8_t*>(p);
    return int_quarters([=](int q) { return u32x4{b[4 * q], b[4 * q + 1], b[4 * q + 2], b[4 * q + 3]}; });
}
DECODESTEP_INLINE f32x16 from_i8(const void* p) {
    const i32x16 bytes = load_u8(p);
    return quarters([&](int q) { return to_float(as_signed(bytes.v[q] << 24) >> 24); });
}
DECODESTEP_INLINE f32x16 from_f16(const void* p) {
    const i32x16 halves = load_u16(p);
    return quarters([&](int q) {  // as decodestep::to_float of one
        const u32x4 size = halves.v[q] & splat(0x7fffu), sign = (halves.v[q] & splat(0x8000u)) << 16;
        const u32x4 special = std::bit_cast<u32x4>(size >= splat(0x7c00u)) & splat(0x7f800000u);
        return as_float(bits_of(as_float(size << 13) * splat(0x1p112f)) | special | sign);
    });
}
// One float16 in every lane.
DECODESTEP_INLINE f32x16 broadcast_f16(const void* p) {
    F16 half;
    std::memcpy(&half, p, sizeof half);
    return broadcast(decodestep::to_float(half));
}
DECODESTEP_INLINE f32x16 from_bf16(const void* p) { return low_bf16(load_u16(p)); }
// Sixteen bytes hold 32 values of four bits: the lower halves come first, then the upper halves.
DECODESTEP_INLINE f32x32 from_nibbles(const void* p) {
    const i32x16 bytes = load_u8(p);
    return {to_float(bytes & broadcast_int(15)), to_float(shift_right<4>(bytes))};
}
struct u8x32 {
    uint8_t v[2 * kLanes];
};
DECODESTEP_INLINE u8x32 bit_field(const uint8_t* p, size_t shift, int mask) {
    u8x32 r;
    for (int i = 0; i < 2 * kLanes; ++i) r.v[i] = static_cast<uint8_t>(p[i] >> shift & mask);
    return r;
}
DECODESTEP_INLINE u8x32 join_nibbles(u8x32 low, u8x32 high) {
    for (int i = 0; i < 2 * kLanes; ++i) low.v[i] |= static_cast<uint8_t>(high.v[i] << 4);
    return low;
}
DECODESTEP_INLINE f32x32 from_u8(u8x32 a) { return {to_float(load_u8(a.v)), to_float(load_u8(a.v + kLanes))}; }
// Of values in [-128, 127].
DECODESTEP_INLINE void store_i8(int8_t* p, i32x16 a) {
    for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(a.v[i / 4][i % 4]);
}
// To nearest, ties to even.
DECODESTEP_INLINE void store_f16(uint16_t* p, f32x16 a) {
    for (int i = 0; i < kLanes; ++i) p[i] = to_f16(a.v[i / 4][i % 4]).bits;
}

// Sixteen sums in float64.

struct f64x16 {
    double v[kLanes];
};

DECODESTEP_INLINE f64x16 operator+(f64x16 a, f32x16 b) {
    for (int i = 0; i < kLanes; ++i) a.v[i] += static_cast<double>(b.v[i / 4][i % 4]);
    return a;
}
DECODESTEP_INLINE void store(double* p, f64x16 a) { std::memcpy(p, a.v, sizeof a.v); }

// Squares of kSide x kSide words of four bytes.

constexpr int kSide = 8;
struct Words {
    uint32_t v[kSide];
};

// The first `bytes` bytes at p; zeros follow.
DECODESTEP_INLINE Words load_words(const uint8_t* p, size_t bytes) {
    Words w{};
    std::memcpy(w.v, p, bytes < sizeof w.v ? bytes : sizeof w.v);
    return w;
}

DECODESTEP_INLINE void transpose(Words (&m)[kSide]) {
    for (int i = 0; i < kSide; ++i)
        for (int j = 0; j < i; ++j) std::swap(m[i].v[j], m[j].v[i]);
}

// Stores value `part` of every word as float32; parts count from a word's lowest bits. T: float, Bf16, F16 or int8_t.
template <class T>
DECODESTEP_INLINE void store_part(float* out, Words w, int part) {
    for (int i = 0; i < kSide; ++i) {
        if constexpr (std::is_same_v<T, float>)
            out[i] = std::bit_cast<float>(w.v[i]);
        else if constexpr (std::is_same_v<T, int8_t>)
            out[i] = static_cast<float>(static_cast<int8_t>(w.v[i] >> 8 * part));
        else
            out[i] = decodestep::to_float(T{static_cast<uint16_t>(w.v[i] >> 16 * part)});
    }
}

// Bytes.

struct i8x4 {  // the same four bytes for every lane
    uint32_t v;
};

DECODESTEP_INLINE i8x4 broadcast_quad(const int8_t* p) {
    i8x4 r;
    std::memcpy(&r.v, p, sizeof r.v);
    return r;
}
// For each byte, below 16, one of sixteen.
DECODESTEP_INLINE u8x64 look_up(u8x64 a, const uint8_t* sixteen) {
    uint8_t bytes[64];
    std::memcpy(bytes, a.v, sizeof bytes);
    for (uint8_t& byte : bytes) byte = sixteen[byte];
    return load_bytes(bytes);
}

// Pairs of int16: the first and third byte of each lane, the second and fourth, and sums of two products.

DECODESTEP_INLINE u32x4 multiply_pairs(u32x4 a, u32x4 b) {
#if defined(__SSE2__)
    return std::bit_cast<u32x4>(_mm_madd_epi16(std::bit_cast<__m128i>(a), std::bit_cast<__m128i>(b)));
#else
    const auto low = [](u32x4 pairs) { return as_signed(pairs << 16) >> 16; };
    const auto high = [](u32x4 pairs) { return as_signed(pairs) >> 16; };
    return std::bit_cast<u32x4>(low(a) * low(b)) + std::bit_cast<u32x4>(high(a) * high(b));
#endif
}
// Bytes, as two int16 a lane: the sign of the lower one is moved up, then down again, in the place of each.
DECODESTEP_INLINE u32x4 odd_bytes(u32x4 a) {
    const u32x4 low = std::bit_cast<u32x4>(as_signed(a << 16) >> 24) & splat(0xffffu);
    return low | (std::bit_cast<u32x4>(as_signed(a) >> 8) & splat(0xffff0000u));
}
DECODESTEP_INLINE i32x16 odd_bytes(i32x16 a) {
    return int_quarters([&](int q) { return odd_bytes(a.v[q]); });
}
DECODESTEP_INLINE i32x16 even_bytes(i32x16 a) {
    return int_quarters([&](int q) { return odd_bytes((a.v[q] & splat(0x00ff00ffu)) << 8); });
}
DECODESTEP_INLINE i32x16 multiply_pairs(i32x16 a, i32x16 b) {
    return int_quarters([&](int q) { return multiply_pairs(a.v[q], b.v[q]); });
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

// Products of bytes: sums of four unsigned bytes times four signed ones, exact.

DECODESTEP_INLINE i32x16 dot_nibbles(i32x16 sums, u8x64 w, i8x4 x) {
    const u32x4 odd = odd_bytes(splat(x.v)), even = odd_bytes(splat((x.v & 0x00ff00ffu) << 8));
    return int_quarters([&](int q) {
        const u32x4 low = w.v[q] & splat(0x00ff00ffu), high = w.v[q] >> 8 & splat(0x00ff00ffu);
        return sums.v[q] + (multiply_pairs(low, even) + multiply_pairs(high, odd));
    });
}

}  // namespace decodestep::DECODESTEP_BUILD
