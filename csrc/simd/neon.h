// NEON, also with dot products of bytes: of signed ones (dotprod), of unsigned with signed ones (i8mm). A vector is
// four registers.
#pragma once

#include <arm_neon.h>

#include "simd/quarters.h"

namespace decodestep::DECODESTEP_BUILD {

// The constants of a target: see target.h.
constexpr int kVectorRegisters = 8;
constexpr bool kStoresBytes = true;
constexpr size_t kPrefetchBytes = 2048;
constexpr size_t kStreams = 1;
constexpr bool kSplitsBf16 = false;

// Float32.

DECODESTEP_INLINE Register fma(Register a, Register b, Register c) { return vfmaq_f32(c, a, b); }
DECODESTEP_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
    return {{fma(a.v[0], b.v[0], c.v[0]), fma(a.v[1], b.v[1], c.v[1]), fma(a.v[2], b.v[2], c.v[2]),
             fma(a.v[3], b.v[3], c.v[3])}};
}
DECODESTEP_INLINE f32x16 round_even(f32x16 a) {
    return {{vrndnq_f32(a.v[0]), vrndnq_f32(a.v[1]), vrndnq_f32(a.v[2]), vrndnq_f32(a.v[3])}};
}
// a * 2^n for integral n in [-126, 127].
DECODESTEP_INLINE f32x16 times_exp2(f32x16 a, f32x16 n) {
    return quarters([&](int q) DECODESTEP_INLINE_LAMBDA {
        const int32x4_t biased = vaddq_s32(vcvtq_s32_f32(n.v[q]), vdupq_n_s32(127));
        return a.v[q] * vreinterpretq_f32_s32(vshlq_n_s32(biased, 23));
    });
}
DECODESTEP_INLINE float largest(f32x16 a) {
    const float32x4_t four = max(max(a.v[0], a.v[2]), max(a.v[1], a.v[3]));
    const float32x4_t two = max(four, vextq_f32(four, four, 2));
    return vgetq_lane_f32(max(two, vextq_f32(two, two, 1)), 0);
}
DECODESTEP_INLINE void keep_in_register(Register& a) { asm("" : "+w"(a)); }
DECODESTEP_INLINE void keep_in_register(f32x16& a) { asm("" : "+w"(a.v[0]), "+w"(a.v[1]), "+w"(a.v[2]), "+w"(a.v[3])); }
DECODESTEP_INLINE void keep_scalar(uint64_t& a) { asm volatile("" : "+r"(a) : : "memory"); }

// Masks.

// A lane that holds NaN is never at least anything.
DECODESTEP_INLINE Mask at_least(f32x16 a, f32x16 b) {
    const auto quarter = [&](int q)
                             DECODESTEP_INLINE_LAMBDA { return vandq_u32(vcgeq_f32(a.v[q], b.v[q]), mask_bits(q)); };
    return vaddvq_u32(vorrq_u32(vorrq_u32(quarter(0), quarter(1)), vorrq_u32(quarter(2), quarter(3))));
}

// Int32.

DECODESTEP_INLINE int32_t sum(i32x16 a) {
    return static_cast<int32_t>(vaddvq_u32((a.v[0] + a.v[1]) + (a.v[2] + a.v[3])));
}
DECODESTEP_INLINE int32_t largest(i32x16 a) {
    return vmaxvq_s32(as_signed(max(max(a.v[0], a.v[1]), max(a.v[2], a.v[3]))));
}
DECODESTEP_INLINE f32x16 unsigned_to_float(i32x16 a) {
    return {{vcvtq_f32_u32(a.v[0]), vcvtq_f32_u32(a.v[1]), vcvtq_f32_u32(a.v[2]), vcvtq_f32_u32(a.v[3])}};
}
// To nearest, ties to even; 0 for NaN. Magnitudes are below 2^31.
DECODESTEP_INLINE i32x16 round_to_int(f32x16 a) {
    return int_quarters([&](int q) DECODESTEP_INLINE_LAMBDA { return vreinterpretq_u32_s32(vcvtnq_s32_f32(a.v[q])); });
}

// Narrower types in memory.

DECODESTEP_INLINE i32x16 widen(uint16x8_t low, uint16x8_t high) {
    return {{vmovl_u16(vget_low_u16(low)), vmovl_high_u16(low), vmovl_u16(vget_low_u16(high)), vmovl_high_u16(high)}};
}
DECODESTEP_INLINE i32x16 widen(uint8x16_t bytes) { return widen(vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes)); }
DECODESTEP_INLINE i32x16 load_u16(const void* p) {
    return widen(load_quarter<uint16x8_t>(p), load_quarter<uint16x8_t>(static_cast<const uint8_t*>(p) + 16));
}
DECODESTEP_INLINE i32x16 load_u8(const void* p) { return widen(load_quarter<uint8x16_t>(p)); }
DECODESTEP_INLINE f32x16 from_i8(const void* p) {
    const auto bytes = load_quarter<int8x16_t>(p);
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))}};
}
DECODESTEP_INLINE f32x16 from_f16(const void* p) {
    const auto* halves = static_cast<const uint8_t*>(p);
    return quarters([=](int q)
                        DECODESTEP_INLINE_LAMBDA { return vcvt_f32_f16(load_quarter<float16x4_t>(halves + 8 * q)); });
}
// One float16 in every lane.
DECODESTEP_INLINE f32x16 broadcast_f16(const void* p) {
    uint16_t half;
    std::memcpy(&half, p, sizeof half);
    const float32x4_t wide = vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half)));
    return {{wide, wide, wide, wide}};
}
// Zeros before each: one instruction, where a wider integer that is shifted takes two.
DECODESTEP_INLINE f32x16 from_bf16(const void* p) {
    const auto low = load_quarter<uint16x8_t>(p), high = load_quarter<uint16x8_t>(static_cast<const uint8_t*>(p) + 16);
    const auto first = [](uint16x8_t a) { return vreinterpretq_f32_u16(vzip1q_u16(vdupq_n_u16(0), a)); };
    const auto second = [](uint16x8_t a) { return vreinterpretq_f32_u16(vzip2q_u16(vdupq_n_u16(0), a)); };
    return {{first(low), second(low), first(high), second(high)}};
}
// Sixteen bytes hold 32 values of four bits: the lower halves come first, then the upper halves.
DECODESTEP_INLINE f32x32 from_nibbles(const void* p) {
    const auto bytes = load_quarter<uint8x16_t>(p);
    return {to_float(widen(vandq_u8(bytes, vdupq_n_u8(15)))), to_float(widen(vshrq_n_u8(bytes, 4)))};
}
struct u8x32 {
    uint8x16_t low, high;
};
DECODESTEP_INLINE u8x32 bit_field(const uint8_t* p, size_t shift, int mask) {
    const int8x16_t right = vdupq_n_s8(static_cast<int8_t>(-static_cast<int>(shift)));
    const uint8x16_t kept = vdupq_n_u8(static_cast<uint8_t>(mask));
    return {vandq_u8(vshlq_u8(vld1q_u8(p), right), kept), vandq_u8(vshlq_u8(vld1q_u8(p + 16), right), kept)};
}
DECODESTEP_INLINE u8x32 join_nibbles(u8x32 low, u8x32 high) {
    return {vsliq_n_u8(low.low, high.low, 4), vsliq_n_u8(low.high, high.high, 4)};
}
DECODESTEP_INLINE f32x32 from_u8(u8x32 a) { return {to_float(widen(a.low)), to_float(widen(a.high))}; }
// Of values in [-128, 127].
DECODESTEP_INLINE void store_i8(int8_t* p, i32x16 a) {
    const auto words = [&](int q) DECODESTEP_INLINE_LAMBDA {
        return vcombine_s16(vmovn_s32(vreinterpretq_s32_u32(a.v[q])), vmovn_s32(vreinterpretq_s32_u32(a.v[q + 1])));
    };
    vst1q_s8(p, vcombine_s8(vmovn_s16(words(0)), vmovn_s16(words(2))));
}
// To nearest, ties to even.
DECODESTEP_INLINE void store_f16(uint16_t* p, f32x16 a) {
    for (int q = 0; q < kQuarters; ++q) vst1_u16(p + 4 * q, vreinterpret_u16_f16(vcvt_f16_f32(a.v[q])));
}

// Sixteen sums in float64.

struct f64x16 {
    float64x2_t v[2 * kQuarters];
};

DECODESTEP_INLINE f64x16 operator+(f64x16 a, f32x16 b) {
    for (int q = 0; q < kQuarters; ++q) {
        a.v[2 * q] = vaddq_f64(a.v[2 * q], vcvt_f64_f32(vget_low_f32(b.v[q])));
        a.v[2 * q + 1] = vaddq_f64(a.v[2 * q + 1], vcvt_high_f64_f32(b.v[q]));
    }
    return a;
}
DECODESTEP_INLINE void store(double* p, f64x16 a) { std::memcpy(p, a.v, sizeof a.v); }

// Squares of kSide x kSide words of four bytes.

constexpr int kSide = 4;
using Words = uint32x4_t;

// The first `bytes` bytes at p; zeros follow.
DECODESTEP_INLINE Words load_words(const uint8_t* p, size_t bytes) {
    if (bytes >= sizeof(Words)) return load_quarter<Words>(p);
    uint8_t words[sizeof(Words)] = {};
    std::memcpy(words, p, bytes);
    return load_quarter<Words>(words);
}

DECODESTEP_INLINE void transpose(Words (&m)[kSide]) {
    const auto low = [](Words a, Words b) {
        return vreinterpretq_u32_u64(vzip1q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)));
    };
    const auto high = [](Words a, Words b) {
        return vreinterpretq_u32_u64(vzip2q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)));
    };
    const Words even = vtrn1q_u32(m[0], m[1]), odd = vtrn2q_u32(m[0], m[1]);
    const Words even_after = vtrn1q_u32(m[2], m[3]), odd_after = vtrn2q_u32(m[2], m[3]);
    m[0] = low(even, even_after), m[1] = low(odd, odd_after);
    m[2] = high(even, even_after), m[3] = high(odd, odd_after);
}

// Stores value `part` of every word as float32; parts count from a word's lowest bits. T: float, Bf16, F16 or int8_t.
template <class T>
DECODESTEP_INLINE void store_part(float* out, Words w, int part) {
    if constexpr (std::is_same_v<T, float>) {
        vst1q_u32(reinterpret_cast<uint32_t*>(out), w);
    } else if constexpr (std::is_same_v<T, Bf16>) {
        const Words value = part ? vandq_u32(w, vdupq_n_u32(0xffff0000u)) : vshlq_n_u32(w, 16);
        vst1q_u32(reinterpret_cast<uint32_t*>(out), value);
    } else if constexpr (std::is_same_v<T, F16>) {
        const uint16x4_t halves = vmovn_u32(part ? vshrq_n_u32(w, 16) : w);
        vst1q_f32(out, vcvt_f32_f16(vreinterpret_f16_u16(halves)));
    } else {
        const int32x4_t upper = vshlq_s32(vreinterpretq_s32_u32(w), vdupq_n_s32(24 - 8 * part));
        vst1q_f32(out, vcvtq_f32_s32(vshrq_n_s32(upper, 24)));
    }
}

// Bytes.

struct i8x4 {  // the same four bytes for every lane
    int8x16_t v;
};
DECODESTEP_INLINE i8x4 broadcast_quad(const int8_t* p) {
    uint32_t quad;
    std::memcpy(&quad, p, sizeof quad);
    return {vreinterpretq_s8_u32(vdupq_n_u32(quad))};
}
// For each byte, below 16, one of sixteen.
DECODESTEP_INLINE u8x64 look_up(u8x64 a, const uint8_t* sixteen) {
    const uint8x16_t table = vld1q_u8(sixteen);
    return bytes_of(int_quarters([&](int q) DECODESTEP_INLINE_LAMBDA {
        return vreinterpretq_u32_u8(vqtbl1q_u8(table, vreinterpretq_u8_u32(a.v[q])));
    }));
}

// Pairs of int16: the first and third byte of each lane, the second and fourth, and sums of two products.

DECODESTEP_INLINE i32x16 odd_bytes(i32x16 a) {
    return int_quarters([&](int q) DECODESTEP_INLINE_LAMBDA {
        return vreinterpretq_u32_s16(vshrq_n_s16(vreinterpretq_s16_u32(a.v[q]), 8));
    });
}
DECODESTEP_INLINE i32x16 even_bytes(i32x16 a) {
    return odd_bytes(int_quarters([&](int q) DECODESTEP_INLINE_LAMBDA {
        return vreinterpretq_u32_s16(vshlq_n_s16(vreinterpretq_s16_u32(a.v[q]), 8));
    }));
}
DECODESTEP_INLINE i32x16 multiply_pairs(i32x16 a, i32x16 b) {
    return int_quarters([&](int q) DECODESTEP_INLINE_LAMBDA {
        const int16x8_t x = vreinterpretq_s16_u32(a.v[q]), y = vreinterpretq_s16_u32(b.v[q]);
        const int32x4_t low = vmull_s16(vget_low_s16(x), vget_low_s16(y)), high = vmull_high_s16(x, y);
        return vreinterpretq_u32_s32(vpaddq_s32(low, high));
    });
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

// Products of bytes: sums of four unsigned bytes times four signed ones, exact.

// sums + the products of four groups of four signed bytes.
DECODESTEP_INLINE u32x4 dot_signed(u32x4 sums, int8x16_t a, int8x16_t b) {
#ifdef __ARM_FEATURE_DOTPROD
    return vreinterpretq_u32_s32(vdotq_s32(as_signed(sums), a, b));
#else  // sixteen bits hold two of the products: 2 * 128 * 127
    const int16x8_t pairs = vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b));
    return vreinterpretq_u32_s32(vpadalq_s16(as_signed(sums), pairs));
#endif
}

#ifdef __ARM_FEATURE_DOTPROD

#define DECODESTEP_HAS_DOT_QUADS
constexpr bool kUnsignedWeights = false;  // see fallbacks.h
DECODESTEP_INLINE i32x16 dot_quads(i32x16 sums, i32x16 a, i32x16 b) {
    return int_quarters([&](int q) DECODESTEP_INLINE_LAMBDA {
        return dot_signed(sums.v[q], vreinterpretq_s8_u32(a.v[q]), vreinterpretq_s8_u32(b.v[q]));
    });
}

#endif  // __ARM_FEATURE_DOTPROD

#ifdef __ARM_FEATURE_MATMUL_INT8

// The matrix products of this extension are not used: they take two outputs of eight inputs, where panels have sixteen
// of four side by side.
DECODESTEP_INLINE i32x16 dot_nibbles(i32x16 sums, u8x64 w, i8x4 x) {
    return int_quarters([&](int q) DECODESTEP_INLINE_LAMBDA {
        const int32x4_t before = as_signed(sums.v[q]);
        return vreinterpretq_u32_s32(vusdotq_s32(before, vreinterpretq_u8_u32(w.v[q]), x.v));
    });
}

#else

DECODESTEP_INLINE i32x16 dot_signed(i32x16 sums, u8x64 w, i8x4 x) {
    return int_quarters(
        [&](int q) DECODESTEP_INLINE_LAMBDA { return dot_signed(sums.v[q], vreinterpretq_s8_u32(w.v[q]), x.v); });
}
// Their bytes have less than eight bits.
DECODESTEP_INLINE i32x16 dot_nibbles(i32x16 sums, u8x64 w, i8x4 x) { return dot_signed(sums, w, x); }

#define DECODESTEP_HAS_DOT_BYTES
constexpr int kByteOffset = 0;  // see fallbacks.h
DECODESTEP_INLINE u8x64 without_offset(u8x64 w) {
    return bytes_of(words_of(w) ^ broadcast_int(static_cast<int32_t>(0x80808080u)));
}
DECODESTEP_INLINE i32x16 dot_bytes(i32x16 sums, u8x64 w, i8x4 x) { return dot_signed(sums, without_offset(w), x); }

#define DECODESTEP_HAS_STORED_BYTES
// Weights of dot_bytes in the form in which many tokens are multiplied by them: signed.
struct StoredBytes {
    u8x64 v;
};
constexpr size_t kStoredBytes = 64;
DECODESTEP_INLINE void store_weights(uint8_t* p, u8x64 w) { store_bits(p, words_of(without_offset(w))); }
DECODESTEP_INLINE StoredBytes load_weights(const uint8_t* p) { return {load_bytes(p)}; }
DECODESTEP_INLINE i32x16 dot_bytes(i32x16 sums, StoredBytes w, i8x4 x) { return dot_signed(sums, w.v, x); }

#endif  // __ARM_FEATURE_MATMUL_INT8

}  // namespace decodestep::DECODESTEP_BUILD
