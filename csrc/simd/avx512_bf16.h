// AVX-512 with dot products of bytes (VNNI) and of bfloat16 (BF16), and with compression of bytes (VBMI2).
#pragma once

#include <array>

#include "simd/avx512_byte_products.h"

namespace decodestep::DECODESTEP_BUILD {

// Products of pairs of bfloat16: see without_bf16_products.h.

struct Bf16Pairs {
    __m512bh v;
};
DECODESTEP_INLINE Bf16Pairs bf16_pairs(i32x16 bits) { return {reinterpret_cast<__m512bh>(bits.v)}; }
DECODESTEP_INLINE f32x16 add_products(f32x16 sums, Bf16Pairs x, Bf16Pairs w) {
    return {_mm512_dpbf16_ps(sums.v, x.v, w.v)};
}

struct PairDot {
    static constexpr int kSteps = 1;
    using Value = Bf16;

    template <int>
    static DECODESTEP_INLINE Bf16Pairs token(const Value* pair) {
        int32_t bits;
        std::memcpy(&bits, pair, sizeof bits);
        return bf16_pairs(broadcast_int(bits));
    }
    template <int>
    static DECODESTEP_INLINE Bf16Pairs weights(const void* p, bool first = true, bool second = true) {
        const uint32_t wanted = (first ? 0xffffu : 0) | (second ? 0xffff0000u : 0);
        const i32x16 bits = load_bits(p);
        return bf16_pairs(first && second ? bits : bits & broadcast_int(static_cast<int32_t>(wanted)));
    }
    static DECODESTEP_INLINE f32x16 add(f32x16 sums, Bf16Pairs x, Bf16Pairs w) { return add_products(sums, x, w); }
    static DECODESTEP_INLINE void round_values(Value* out, f32x16 values);
    static DECODESTEP_INLINE void round_weights(Value* out, f32x16 weights) { round_values(out, weights); }
};

// Rounds sums of products of bfloat16. The instruction flushes subnormals, as add_products has done before: for other
// values see put_all in simd/rounding.h.
DECODESTEP_INLINE void store_sums(Bf16* p, f32x16 sums) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sums.v)));
}

DECODESTEP_INLINE void PairDot::round_values(Value* out, f32x16 values) { store_sums(out, values); }

// The marked items of 64.

alignas(64) constexpr auto kPlaces = [] {
    std::array<uint8_t, 64> places{};
    for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<uint8_t>(i);
    return places;
}();

// Items p[places[i]] for sixteen places below 64.
DECODESTEP_INLINE f32x16 pick(const float* p, __m128i places) {
    const auto from = [&](size_t i) { return _mm512_loadu_si512(p + i); };
    const __m512i at = _mm512_cvtepu8_epi32(places);
    const __m512i low = _mm512_permutex2var_epi32(from(0), at, from(16));
    const __m512i high = _mm512_permutex2var_epi32(from(32), at, from(48));
    return {_mm512_castsi512_ps(_mm512_mask_mov_epi32(low, _mm512_test_epi32_mask(at, _mm512_set1_epi32(32)), high))};
}
DECODESTEP_INLINE __m256i pick_halves(const void* p, __m128i places) {
    const auto* halves = static_cast<const uint16_t*>(p);
    const __m512i at = _mm512_castsi256_si512(_mm256_cvtepu8_epi16(places));
    return _mm512_castsi512_si256(
        _mm512_permutex2var_epi16(_mm512_loadu_si512(halves), at, _mm512_loadu_si512(halves + 32)));
}
DECODESTEP_INLINE f32x16 pick(const Bf16* p, __m128i places) {
    return low_bf16({_mm512_cvtepu16_epi32(pick_halves(p, places))});
}
DECODESTEP_INLINE f32x16 pick(const F16* p, __m128i places) { return {_mm512_cvtph_ps(pick_halves(p, places))}; }

constexpr bool kListsWords = true;
// Writes the ids first + i and the items p[i] (NaN as -inf) for each bit i of a word, ascending; there must be room for
// sixteen more of each. Returns their number.
template <class Item>
DECODESTEP_INLINE size_t list_word(uint64_t word, const Item* p, int32_t first, int32_t* ids, float* scores) {
    const auto count = static_cast<size_t>(std::popcount(word));
    __m512i places = _mm512_maskz_compress_epi8(word, _mm512_load_si512(kPlaces.data()));
    const auto write = [&](size_t i) {
        const __m128i sixteen = _mm512_castsi512_si128(places);
        _mm512_storeu_si512(ids + i, _mm512_add_epi32(_mm512_cvtepu8_epi32(sixteen), _mm512_set1_epi32(first)));
        store(scores + i, max(pick(p, sixteen), broadcast(-__builtin_inff())));
    };
    write(0);
    if (count > kLanes) [[unlikely]]
        for (size_t i = kLanes; i < count; i += kLanes) {
            places = _mm512_shuffle_i64x2(places, places, 0x39);
            write(i);
        }
    return count;
}

}  // namespace decodestep::DECODESTEP_BUILD
