// Primitives that a family of instruction sets may leave out, from its others: each is here unless the family, where it
// has better, defines DECODESTEP_HAS_ and its name.
#pragma once

#include "simd/target.h"

namespace decodestep::DECODESTEP_BUILD {

// Float32 and int32.

#ifndef DECODESTEP_HAS_SPLIT_EXPONENT
// An exponent as a fraction in [0, 1] and a power for times_exp2.
struct Exponent {
    f32x16 fraction, whole;
};
DECODESTEP_INLINE Exponent split_exponent(f32x16 x) {
    x = min(max(x, broadcast(-126.0f)), broadcast(128.0f));
    const f32x16 n = round_even(x - broadcast(0.5f));
    return {x - n, n};
}
#endif

#ifndef DECODESTEP_HAS_ROTATE_LEFT
template <int bits>
DECODESTEP_INLINE i32x16 rotate_left(i32x16 a) {
    return shift_left<bits>(a) | shift_right<32 - bits>(a);
}
#endif

#ifndef DECODESTEP_HAS_AT_LEAST_BF16
// Bit i: whether bfloat16 i of 32 is at least the threshold, whose lower 16 bits are zero. NaN may be marked.
DECODESTEP_INLINE uint32_t at_least_bf16(const Bf16* p, float threshold) {
    const f32x16 least = broadcast(threshold);
    return at_least(from_bf16(p), least) | at_least(from_bf16(p + kLanes), least) << kLanes;
}
#endif

// Lists of marked items.

#ifndef DECODESTEP_HAS_COMPACT
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
#endif

#ifndef DECODESTEP_HAS_LIST_WORD
// Whether list_word writes the marked ones of 64 items at once.
constexpr bool kListsWords = false;
template <class Item>
size_t list_word(uint64_t word, const Item* p, int32_t first, int32_t* ids, float* scores) = delete;
#endif

// Bytes and pairs of int16.

#ifndef DECODESTEP_HAS_ADD_PAIR_PRODUCTS
// sums + multiply_pairs(a, b).
DECODESTEP_INLINE i32x16 add_pair_products(i32x16 sums, i32x16 a, i32x16 b) { return sums + multiply_pairs(a, b); }
#endif

#ifndef DECODESTEP_HAS_ROUND_TO_BYTES
DECODESTEP_INLINE PairSums pair_sums(i32x16 a) {
    alignas(64) constexpr int32_t kEvenPairs[kLanes] = {-1, -1, 0, 0, -1, -1, 0, 0, -1, -1, 0, 0, -1, -1, 0, 0};
    const int32_t even = sum(a & load_bits(kEvenPairs));
    return {even, sum(a) - even};
}

// Rounds 32 values in [-127, 127] to bytes, ties to even, NaN to 0; returns the sums of the first and of the last
// sixteen.
DECODESTEP_INLINE std::pair<PairSums, PairSums> round_to_bytes(f32x16 first, f32x16 second, int8_t* bytes) {
    const i32x16 a = round_to_int(first), b = round_to_int(second);
    store_i8(bytes, a);
    store_i8(bytes + kLanes, b);
    return {pair_sums(a), pair_sums(b)};
}
#endif

// Products of groups of four int8 of any value, also -128: sixteen groups by sixteen groups are added to sixteen sums,
// which are exact. Where kUnsignedWeights is true, the bytes of the first factor are unsigned: the weights + 128.
#ifdef DECODESTEP_HAS_DOT_QUADS
using I8Quads = i32x16;
DECODESTEP_INLINE I8Quads i8_quads(i32x16 bits) { return bits; }
DECODESTEP_INLINE i32x16 add_products(i32x16 sums, I8Quads w, I8Quads x) { return dot_quads(sums, w, x); }
#else
struct I8Quads {
    i32x16 even, odd;
};
constexpr bool kUnsignedWeights = false;
DECODESTEP_INLINE I8Quads i8_quads(i32x16 bits) { return {even_bytes(bits), odd_bytes(bits)}; }
DECODESTEP_INLINE i32x16 add_products(i32x16 sums, const I8Quads& w, const I8Quads& x) {
    return sums + (multiply_pairs(x.even, w.even) + multiply_pairs(x.odd, w.odd));
}
#endif

#ifndef DECODESTEP_HAS_DOT_BYTES
// Weights of dot_bytes are stored as q + 128; this much of the 128 is left in the products, for the caller to subtract.
constexpr int kByteOffset = 128;
DECODESTEP_INLINE i32x16 dot_bytes(i32x16 sums, u8x64 w, i8x4 x) { return dot_nibbles(sums, w, x); }
#endif

#ifndef DECODESTEP_HAS_BYTE_SUMS
// Sums of products of unsigned bytes with signed ones, of four inputs a step. They hold the steps whose largest
// unsigned bytes add up to this.
using ByteSums = i32x16;
constexpr int kByteSumsHold = 1 << 16;
constexpr bool kWideSums = true;
// Sums of pairs of int16 times a factor. Where ByteSums are two int16 a lane, the sums of a pair are its own two.
DECODESTEP_INLINE ByteSums times(i32x16 pairs, int16_t factor) {
    const auto factors = static_cast<int32_t>(static_cast<uint16_t>(factor) * 0x00010001u);
    return multiply_pairs(pairs, broadcast_int(factors));
}
DECODESTEP_INLINE ByteSums multiply_bytes(u8x64 w, i8x4 x) { return dot_nibbles(broadcast_int(0), w, x); }
DECODESTEP_INLINE void add_byte_products(ByteSums& sums, u8x64 w, i8x4 x) { sums = dot_nibbles(sums, w, x); }
DECODESTEP_INLINE i32x16 reduce(ByteSums sums) { return sums; }

// Scales of ByteSums: sixteen unsigned bytes, or the first or second of sixteen pairs of int16. Sums times scales are
// less than 2^24, and so are exact as floats, which takes fewer instructions than products of integers.
using ByteProducts = f32x16;
DECODESTEP_INLINE f32x16 load_scales(const uint8_t* p) { return to_float(load_u8(p)); }
DECODESTEP_INLINE f32x16 first_scales(i32x16 pairs) { return to_float(multiply_pairs(pairs, broadcast_int(1))); }
DECODESTEP_INLINE f32x16 second_scales(i32x16 pairs) { return to_float(multiply_pairs(pairs, broadcast_int(1 << 16))); }
DECODESTEP_INLINE ByteProducts reduce(ByteSums sums, f32x16 scales) { return to_float(sums) * scales; }
// products + the sums times the scales, less than 2^24 too.
DECODESTEP_INLINE ByteProducts add_reduced(ByteProducts products, ByteSums sums, f32x16 scales) {
    return fma(to_float(sums), scales, products);
}
DECODESTEP_INLINE f32x16 to_float(ByteProducts products) { return products; }
#endif

#ifndef DECODESTEP_HAS_STORED_BYTES
// Weights of dot_bytes in the form in which many tokens are multiplied by them: as they are.
using StoredBytes = u8x64;
constexpr size_t kStoredBytes = 64;
DECODESTEP_INLINE void store_weights(uint8_t* p, u8x64 w) { store_bits(p, words_of(w)); }
DECODESTEP_INLINE StoredBytes load_weights(const uint8_t* p) { return load_bytes(p); }
#endif

// Sixteen values, none of them a signalling NaN, rounded to bfloat16: to nearest, ties to even. Of NaN whose upper bits
// are ones the lower ones are left out, so that the sum does not pass into the sign.
DECODESTEP_INLINE f32x16 rounded_bits_to_bf16(i32x16 bits) {
    const i32x16 odd = shift_right<16>(bits) & broadcast_int(1);
    return high_bf16(bits + (odd + broadcast_int(0x7fff)));
}
DECODESTEP_INLINE f32x16 rounded_to_bf16(f32x16 values) {
    const i32x16 bits = bits_of(values), most = broadcast_int(0x7fff0000),
                 past = max(bits & broadcast_int(0x7fffffff), most) ^ most;
    return rounded_bits_to_bf16(bits ^ past);
}

// Products of pairs of bfloat16 of a token and of sixteen outputs, in kSteps steps. A pair adds its second product,
// then its first, each with the one rounding of a fused multiply-add; the dot-product instruction does the same, but
// flushes subnormals. A token's values lie in memory in the form that is read fastest: here a product is a step, and
// values are widened to float32.
#ifndef DECODESTEP_HAS_BF16_PAIRS
struct PairDot {
    static constexpr int kSteps = 2;
    using Value = float;  // rounded to bfloat16

    template <int step>
    static DECODESTEP_INLINE f32x16 token(const Value* pair) {
        return broadcast(pair[1 - step]);
    }
    template <int step>
    static DECODESTEP_INLINE f32x16 weights(const void* p) {
        return step == 0 ? high_bf16(load_bits(p)) : low_bf16(load_bits(p));
    }
    // With zeros in place of the first of each pair, or of the second, unless that is wanted.
    template <int step>
    static DECODESTEP_INLINE f32x16 weights(const void* p, bool first, bool second) {
        return (step == 0 ? second : first) ? weights<step>(p) : broadcast(0.0f);
    }
    static DECODESTEP_INLINE f32x16 add(f32x16 sums, f32x16 x, f32x16 w) { return fma(x, w, sums); }

    // Rounds sixteen values of a token, none of them a signalling NaN.
    static DECODESTEP_INLINE void round_values(Value* out, f32x16 values) { store(out, rounded_to_bf16(values)); }
    // The same for weights of attention: of NaN, which come from products of bfloat16, the lower bits are zeros.
    static DECODESTEP_INLINE void round_weights(Value* out, f32x16 weights) {
        store(out, rounded_bits_to_bf16(bits_of(weights)));
    }
};

// Rounds sums of products of bfloat16.
DECODESTEP_INLINE void store_sums(Bf16* p, f32x16 sums) {
    float lanes[kLanes];
    store(lanes, sums);
    for (int i = 0; i < kLanes; ++i) p[i] = to_bf16(lanes[i]);
}
#endif

}  // namespace decodestep::DECODESTEP_BUILD
