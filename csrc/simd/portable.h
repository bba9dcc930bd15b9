// Vectors of four lanes as compilers offer them for any machine: SSE2 on x86, NEON on ARM.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

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

// f(q) for each quarter, and f(i) for each lane.
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
    return quarters([&](int q) { return a.v[q] + b.v[q]; });
}
DECODESTEP_INLINE f32x16 operator-(f32x16 a, f32x16 b) {
    return quarters([&](int q) { return a.v[q] - b.v[q]; });
}
DECODESTEP_INLINE f32x16 operator*(f32x16 a, f32x16 b) {
    return quarters([&](int q) { return a.v[q] * b.v[q]; });
}
DECODESTEP_INLINE f32x16 operator/(f32x16 a, f32x16 b) {
    return quarters([&](int q) { return a.v[q] / b.v[q]; });
}
// max and min return their second operand when one is NaN, on every target.
DECODESTEP_INLINE f32x16 max(f32x16 a, f32x16 b) {
    return quarters([&](int q) { return a.v[q] > b.v[q] ? a.v[q] : b.v[q]; });
}
DECODESTEP_INLINE f32x16 min(f32x16 a, f32x16 b) {
    return quarters([&](int q) { return a.v[q] < b.v[q] ? a.v[q] : b.v[q]; });
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
    return quarters([&](int q) { return magnitude(a.v[q]); });
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
    return quarters([&](int q) { return a.v[q] + as_float(bits_of(b.v[q]) ^ even); });
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
    return int_quarters([&](int q) { return a.v[q] + b.v[q]; });
}
DECODESTEP_INLINE i32x16 operator*(i32x16 a, i32x16 b) {
    return int_quarters([&](int q) { return a.v[q] * b.v[q]; });
}
DECODESTEP_INLINE i32x16 operator&(i32x16 a, i32x16 b) {
    return int_quarters([&](int q) { return a.v[q] & b.v[q]; });
}
DECODESTEP_INLINE i32x16 operator|(i32x16 a, i32x16 b) {
    return int_quarters([&](int q) { return a.v[q] | b.v[q]; });
}
DECODESTEP_INLINE i32x16 operator^(i32x16 a, i32x16 b) {
    return int_quarters([&](int q) { return a.v[q] ^ b.v[q]; });
}
template <int bits>
DECODESTEP_INLINE i32x16 shift_left(i32x16 a) {
    return int_quarters([&](int q) { return a.v[q] << bits; });
}
template <int bits>
DECODESTEP_INLINE i32x16 shift_right(i32x16 a) {
    return int_quarters([&](int q) { return a.v[q] >> bits; });
}
template <int bits>
DECODESTEP_INLINE i32x16 rotate_left(i32x16 a) {
    return shift_left<bits>(a) | shift_right<32 - bits>(a);
}
DECODESTEP_INLINE i32x4 as_signed(u32x4 a) { return std::bit_cast<i32x4>(a); }
DECODESTEP_INLINE i32x16 max(i32x16 a, i32x16 b) {
    return int_quarters([&](int q) { return as_signed(a.v[q]) > as_signed(b.v[q]) ? a.v[q] : b.v[q]; });
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
    return int_quarters([&](int q) { return bits_of(a.v[q]); });
}
DECODESTEP_INLINE f32x16 as_float(i32x16 a) {
    return quarters([&](int q) { return as_float(a.v[q]); });
}
DECODESTEP_INLINE f32x16 to_float(i32x16 a) {
    return quarters([&](int q) { return to_float(as_signed(a.v[q])); });
}
DECODESTEP_INLINE f32x16 unsigned_to_float(i32x16 a) {
    return quarters([&](int q) {  // both parts and the product are exact: one rounding
        return to_float(as_signed(a.v[q] >> 16)) * splat(65536.0f) + to_float(as_signed(a.v[q] & splat(0xffffu)));
    });
}
// To nearest, ties to even; 0 for NaN. Magnitudes are below 2^31.
DECODESTEP_INLINE i32x16 round_to_int(f32x16 a) {
    a = round_even(a);
    return int_quarters([&](int q) { return to_int(a.v[q]) & is_number(a.v[q]); });
}

// --- narrower types in memory

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
// The lower and the upper of the two bfloat16 that each lane holds.
DECODESTEP_INLINE f32x16 low_bf16(i32x16 a) { return as_float(shift_left<16>(a)); }
DECODESTEP_INLINE f32x16 high_bf16(i32x16 a) { return as_float(a & broadcast_int(static_cast<int32_t>(0xffff0000u))); }
DECODESTEP_INLINE f32x16 from_bf16(const void* p) { return low_bf16(load_u16(p)); }
// Whether 32 bfloat16 are widened for less as even and odd ones than in their order.
constexpr bool kSplitsBf16 = false;
// Bit i: whether bfloat16 i of 32 is at least the threshold, whose lower 16 bits are zero. NaN may be marked.
DECODESTEP_INLINE uint32_t at_least_bf16(const Bf16* p, float threshold) {
    const f32x16 least = broadcast(threshold);
    return at_least(from_bf16(p), least) | at_least(from_bf16(p + kLanes), least) << kLanes;
}
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

// --- sixteen sums in float64

struct f64x16 {
    double v[kLanes];
};

DECODESTEP_INLINE f64x16 operator+(f64x16 a, f32x16 b) {
    for (int i = 0; i < kLanes; ++i) a.v[i] += static_cast<double>(b.v[i / 4][i % 4]);
    return a;
}
DECODESTEP_INLINE void store(double* p, f64x16 a) { std::memcpy(p, a.v, sizeof a.v); }

// --- bytes

struct u8x64 {
    u32x4 v[kQuarters];
};
struct i8x4 {  // the same four bytes for every lane
    uint32_t v;
};

DECODESTEP_INLINE u8x64 load_bytes(const uint8_t* p) {
    return {{load_quarter<u32x4>(p), load_quarter<u32x4>(p + 16), load_quarter<u32x4>(p + 32),
             load_quarter<u32x4>(p + 48)}};
}
DECODESTEP_INLINE u8x64 low_nibbles(u8x64 a) {
    for (u32x4& quarter : a.v) quarter &= splat(0x0f0f0f0fu);
    return a;
}
DECODESTEP_INLINE u8x64 high_nibbles(u8x64 a) {
    for (u32x4& quarter : a.v) quarter = quarter >> 4 & splat(0x0f0f0f0fu);
    return a;
}
DECODESTEP_INLINE i8x4 broadcast_quad(const int8_t* p) {
    i8x4 r;
    std::memcpy(&r.v, p, sizeof r.v);
    return r;
}

// --- squares of kSide x kSide words of four bytes

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

// --- pairs of int16: the first and third byte of each lane, the second and fourth, and sums of two products

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

// --- products of bytes: sums of four unsigned bytes times four signed ones, exact

// Weights of dot_bytes are stored as q + 128; this much of the 128 is left in the products, for the caller to subtract.
constexpr int kByteOffset = 128;
DECODESTEP_INLINE i32x16 dot_nibbles(i32x16 sums, u8x64 w, i8x4 x) {
    const u32x4 odd = odd_bytes(splat(x.v)), even = odd_bytes(splat((x.v & 0x00ff00ffu) << 8));
    return int_quarters([&](int q) {
        const u32x4 low = w.v[q] & splat(0x00ff00ffu), high = w.v[q] >> 8 & splat(0x00ff00ffu);
        return sums.v[q] + (multiply_pairs(low, even) + multiply_pairs(high, odd));
    });
}
DECODESTEP_INLINE i32x16 dot_bytes(i32x16 sums, u8x64 w, i8x4 x) { return dot_nibbles(sums, w, x); }

}  // namespace decodestep::DECODESTEP_ISA

#include "simd/without_dot_products.h"
