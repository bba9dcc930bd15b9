// The narrower types of portable.h: halves, bytes and nibbles in memory, and their products. Included at its end.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace decodestep::DECODESTEP_BUILD {

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

// Sixteen sums in float64.

struct f64x16 {
    double v[kLanes];
};

DECODESTEP_INLINE f64x16 operator+(f64x16 a, f32x16 b) {
    for (int i = 0; i < kLanes; ++i) a.v[i] += static_cast<double>(b.v[i / 4][i % 4]);
    return a;
}
DECODESTEP_INLINE void store(double* p, f64x16 a) { std::memcpy(p, a.v, sizeof a.v); }

// Bytes.

struct i8x4 {  // the same four bytes for every lane
    uint32_t v;
};

DECODESTEP_INLINE i8x4 broadcast_quad(const int8_t* p) {
    i8x4 r;
    std::memcpy(&r.v, p, sizeof r.v);
    return r;
}

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

// Products of bytes: sums of four unsigned bytes times four signed ones, exact.

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

}  // namespace decodestep::DECODESTEP_BUILD
