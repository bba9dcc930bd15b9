// Plain C++, from which compilers make what the machine has: SSE2 on x86, NEON on ARM.
#pragma once

namespace decodestep::DECODESTEP_ISA {

constexpr int kVectorRegisters = 4;  // vectors that registers hold: sixteen of four lanes

// --- float32

struct f32x16 {
    float v[kLanes];
};
struct f32x32 {
    f32x16 first, second;
};

template <class F>
DECODESTEP_INLINE f32x16 each(F&& f) {
    f32x16 r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = f(i);
    return r;
}

DECODESTEP_INLINE f32x16 broadcast(float x) {
    return each([=](int) { return x; });
}
DECODESTEP_INLINE f32x16 load(const float* p) {
    f32x16 r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
DECODESTEP_INLINE void store(float* p, f32x16 a) { std::memcpy(p, a.v, sizeof a.v); }
DECODESTEP_INLINE f32x16 operator+(f32x16 a, f32x16 b) {
    return each([&](int i) { return a.v[i] + b.v[i]; });
}
DECODESTEP_INLINE f32x16 operator-(f32x16 a, f32x16 b) {
    return each([&](int i) { return a.v[i] - b.v[i]; });
}
DECODESTEP_INLINE f32x16 operator*(f32x16 a, f32x16 b) {
    return each([&](int i) { return a.v[i] * b.v[i]; });
}
DECODESTEP_INLINE f32x16 operator/(f32x16 a, f32x16 b) {
    return each([&](int i) { return a.v[i] / b.v[i]; });
}
// max and min return their second operand when one is NaN, on every target.
DECODESTEP_INLINE f32x16 max(f32x16 a, f32x16 b) {
    return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
DECODESTEP_INLINE f32x16 min(f32x16 a, f32x16 b) {
    return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
// Two roundings where the machine has no fused multiply-add: it would be a call of a library function for each lane.
DECODESTEP_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__FP_FAST_FMAF)
    return each([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
#else
    return a * b + c;
#endif
}
DECODESTEP_INLINE f32x16 magnitude(f32x16 a) {
    return each([&](int i) { return __builtin_fabsf(a.v[i]); });
}
DECODESTEP_INLINE f32x16 round_even(f32x16 a) {
    return each([&](int i) { return __builtin_rintf(a.v[i]); });
}
// a * 2^n for integral n in [-126, 127].
DECODESTEP_INLINE f32x16 times_exp2(f32x16 a, f32x16 n) {
    return each([&](int i) {
        const uint32_t bits = n.v[i] == n.v[i] ? static_cast<uint32_t>(static_cast<int>(n.v[i]) + 127) << 23 : 0;
        return a.v[i] * std::bit_cast<float>(bits);
    });
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
    return each([&](int i) { return a.v[i ^ 1]; });
}
// a - b in the even lanes, a + b in the odd ones.
DECODESTEP_INLINE f32x16 subtract_add(f32x16 a, f32x16 b) {
    return each([&](int i) { return i % 2 ? a.v[i] + b.v[i] : a.v[i] - b.v[i]; });
}
// Each of eight values twice.
DECODESTEP_INLINE f32x16 load_twice(const float* p) {
    return each([=](int i) { return p[i / 2]; });
}
// Both reductions fold the upper half onto the lower one: 8 + 8, 4 + 4, 2 + 2, 1 + 1, on every target.
DECODESTEP_INLINE float sum(f32x16 a) {
    for (int width = kLanes / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) a.v[i] += a.v[i + width];
    return a.v[0];
}
DECODESTEP_INLINE float largest(f32x16 a) {
    float r = a.v[0];
    for (int i = 1; i < kLanes; ++i) r = a.v[i] > r ? a.v[i] : r;
    return r;
}
// Keep values in registers, where compilers of other targets have to be told.
DECODESTEP_INLINE void keep_in_register(f32x16&) {}
DECODESTEP_INLINE void keep_scalar(uint64_t&) {}

// --- masks

// A lane that holds NaN is never at least anything.
DECODESTEP_INLINE Mask at_least(f32x16 a, f32x16 b) {
    Mask mask = 0;
    for (int i = 0; i < kLanes; ++i) mask |= static_cast<Mask>(a.v[i] >= b.v[i]) << i;
    return mask;
}
// The lanes of the mask, 0 in the others.
DECODESTEP_INLINE f32x16 select(Mask mask, f32x16 a) {
    return each([&](int i) { return mask >> i & 1 ? a.v[i] : 0.0f; });
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
    uint32_t v[kLanes];
};

template <class F>
DECODESTEP_INLINE i32x16 each_int(F&& f) {
    i32x16 r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = f(i);
    return r;
}

DECODESTEP_INLINE i32x16 broadcast_int(int32_t x) {
    return each_int([=](int) { return static_cast<uint32_t>(x); });
}
DECODESTEP_INLINE i32x16 load_bits(const void* p) {
    i32x16 r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
DECODESTEP_INLINE void store_bits(void* p, i32x16 a) { std::memcpy(p, a.v, sizeof a.v); }
DECODESTEP_INLINE i32x16 operator+(i32x16 a, i32x16 b) {
    return each_int([&](int i) { return a.v[i] + b.v[i]; });
}
DECODESTEP_INLINE i32x16 operator*(i32x16 a, i32x16 b) {
    return each_int([&](int i) { return a.v[i] * b.v[i]; });
}
DECODESTEP_INLINE i32x16 operator&(i32x16 a, i32x16 b) {
    return each_int([&](int i) { return a.v[i] & b.v[i]; });
}
DECODESTEP_INLINE i32x16 operator|(i32x16 a, i32x16 b) {
    return each_int([&](int i) { return a.v[i] | b.v[i]; });
}
DECODESTEP_INLINE i32x16 operator^(i32x16 a, i32x16 b) {
    return each_int([&](int i) { return a.v[i] ^ b.v[i]; });
}
template <int bits>
DECODESTEP_INLINE i32x16 shift_left(i32x16 a) {
    return each_int([&](int i) { return a.v[i] << bits; });
}
template <int bits>
DECODESTEP_INLINE i32x16 shift_right(i32x16 a) {
    return each_int([&](int i) { return a.v[i] >> bits; });
}
template <int bits>
DECODESTEP_INLINE i32x16 rotate_left(i32x16 a) {
    return each_int([&](int i) { return std::rotl(a.v[i], bits); });
}
DECODESTEP_INLINE i32x16 max(i32x16 a, i32x16 b) {
    return each_int(
        [&](int i) { return static_cast<int32_t>(a.v[i]) > static_cast<int32_t>(b.v[i]) ? a.v[i] : b.v[i]; });
}
DECODESTEP_INLINE int32_t sum(i32x16 a) {
    uint32_t total = 0;
    for (const uint32_t x : a.v) total += x;
    return static_cast<int32_t>(total);
}
DECODESTEP_INLINE int32_t largest(i32x16 a) {
    int32_t most = static_cast<int32_t>(a.v[0]);
    for (const uint32_t x : a.v) most = static_cast<int32_t>(x) > most ? static_cast<int32_t>(x) : most;
    return most;
}
DECODESTEP_INLINE i32x16 bits_of(f32x16 a) {
    i32x16 r;
    std::memcpy(r.v, a.v, sizeof r.v);
    return r;
}
DECODESTEP_INLINE f32x16 to_float(i32x16 a) {
    return each([&](int i) { return static_cast<float>(static_cast<int32_t>(a.v[i])); });
}
DECODESTEP_INLINE f32x16 unsigned_to_float(i32x16 a) {
    return each([&](int i) { return static_cast<float>(a.v[i]); });
}
// To nearest, ties to even; 0 for NaN. Magnitudes are below 2^31.
DECODESTEP_INLINE i32x16 round_to_int(f32x16 a) {
    a = round_even(a);
    return each_int([&](int i) { return static_cast<uint32_t>(a.v[i] == a.v[i] ? static_cast<int32_t>(a.v[i]) : 0); });
}

// --- narrower types in memory

DECODESTEP_INLINE i32x16 load_u8(const void* p) {
    const auto* bytes = static_cast<const uint8_t*>(p);
    return each_int([=](int i) { return uint32_t{bytes[i]}; });
}
DECODESTEP_INLINE i32x16 load_u16(const void* p) {
    uint16_t halves[kLanes];
    std::memcpy(halves, p, sizeof halves);
    return each_int([&](int i) { return uint32_t{halves[i]}; });
}
DECODESTEP_INLINE f32x16 from_i8(const void* p) {
    const auto* bytes = static_cast<const int8_t*>(p);
    return each([=](int i) { return static_cast<float>(bytes[i]); });
}
DECODESTEP_INLINE f32x16 from_f16(const void* p) {
    F16 halves[kLanes];
    std::memcpy(halves, p, sizeof halves);
    return each([&](int i) { return decodestep::to_float(halves[i]); });
}
// One float16 in every lane.
DECODESTEP_INLINE f32x16 broadcast_f16(const void* p) {
    F16 half;
    std::memcpy(&half, p, sizeof half);
    return broadcast(decodestep::to_float(half));
}
// The lower and the upper of the two bfloat16 that each lane holds.
DECODESTEP_INLINE f32x16 low_bf16(i32x16 a) {
    return each([&](int i) { return std::bit_cast<float>(a.v[i] << 16); });
}
DECODESTEP_INLINE f32x16 high_bf16(i32x16 a) {
    return each([&](int i) { return std::bit_cast<float>(a.v[i] & 0xffff0000u); });
}
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
    const auto* bytes = static_cast<const uint8_t*>(p);
    return {each([=](int i) { return static_cast<float>(bytes[i] & 15); }),
            each([=](int i) { return static_cast<float>(bytes[i] >> 4); })};
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
DECODESTEP_INLINE f32x32 from_u8(u8x32 a) {
    return {each([&](int i) { return static_cast<float>(a.v[i]); }),
            each([&](int i) { return static_cast<float>(a.v[i + kLanes]); })};
}
// Of values in [-128, 127].
DECODESTEP_INLINE void store_i8(int8_t* p, i32x16 a) {
    for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(a.v[i]);
}
// To nearest, ties to even.
DECODESTEP_INLINE void store_f16(uint16_t* p, f32x16 a) {
    for (int i = 0; i < kLanes; ++i) p[i] = to_f16(a.v[i]).bits;
}

// --- sixteen sums in float64

struct f64x16 {
    double v[kLanes];
};

DECODESTEP_INLINE f64x16 operator+(f64x16 a, f32x16 b) {
    for (int i = 0; i < kLanes; ++i) a.v[i] += static_cast<double>(b.v[i]);
    return a;
}
DECODESTEP_INLINE void store(double* p, f64x16 a) { std::memcpy(p, a.v, sizeof a.v); }

// --- bytes

struct u8x64 {
    uint8_t v[4 * kLanes];
};
struct i8x4 {  // the same four bytes for every lane
    int8_t v[4];
};

DECODESTEP_INLINE u8x64 load_bytes(const uint8_t* p) {
    u8x64 r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
DECODESTEP_INLINE u8x64 low_nibbles(u8x64 a) {
    for (uint8_t& byte : a.v) byte &= 15;
    return a;
}
DECODESTEP_INLINE u8x64 high_nibbles(u8x64 a) {
    for (uint8_t& byte : a.v) byte >>= 4;
    return a;
}
DECODESTEP_INLINE i8x4 broadcast_quad(const int8_t* p) { return {{p[0], p[1], p[2], p[3]}}; }

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

// --- products of bytes: sums of four unsigned bytes times four signed ones, exact

// Weights of dot_bytes are stored as q + 128; this much of the 128 is left in the products, for the caller to subtract.
constexpr int kByteOffset = 128;
DECODESTEP_INLINE i32x16 dot_nibbles(i32x16 sums, u8x64 w, i8x4 x) {
    for (int i = 0; i < kLanes; ++i)
        for (int j = 0; j < 4; ++j) sums.v[i] += static_cast<uint32_t>(w.v[4 * i + j] * x.v[j]);
    return sums;
}
DECODESTEP_INLINE i32x16 dot_bytes(i32x16 sums, u8x64 w, i8x4 x) { return dot_nibbles(sums, w, x); }

// --- pairs of int16: the first and third byte of each lane, the second and fourth, and sums of two products

DECODESTEP_INLINE int32_t low_half(uint32_t pair) { return static_cast<int16_t>(pair & 0xffff); }
DECODESTEP_INLINE int32_t high_half(uint32_t pair) { return static_cast<int32_t>(pair) >> 16; }
DECODESTEP_INLINE uint32_t pair_of(int32_t low, int32_t high) {
    return (static_cast<uint32_t>(low) & 0xffff) | static_cast<uint32_t>(high) << 16;
}
DECODESTEP_INLINE i32x16 odd_bytes(i32x16 a) {
    return each_int([&](int i) { return pair_of(low_half(a.v[i]) >> 8, high_half(a.v[i]) >> 8); });
}
DECODESTEP_INLINE i32x16 even_bytes(i32x16 a) {
    return odd_bytes(each_int([&](int i) { return (a.v[i] & 0x00ff00ffu) << 8; }));
}
DECODESTEP_INLINE i32x16 multiply_pairs(i32x16 a, i32x16 b) {
    return each_int([&](int i) {
        const int32_t first = low_half(a.v[i]) * low_half(b.v[i]), second = high_half(a.v[i]) * high_half(b.v[i]);
        return static_cast<uint32_t>(first) + static_cast<uint32_t>(second);
    });
}

}  // namespace decodestep::DECODESTEP_ISA

#include "simd/without_dot_products.h"
