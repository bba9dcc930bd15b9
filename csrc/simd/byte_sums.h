// What products with panels of bytes and nibbles need of a target beside its other primitives: a file for each, chosen
// here as in target.h.
#pragma once

#include "simd/simd.h"

namespace decodestep::DECODESTEP_ISA {

// Sums of bytes 0, 1, 4, 5, ... and of the others.
struct PairSums {
    int32_t even, odd;

    int32_t as_words(int32_t factor) const {
        const auto low = static_cast<uint32_t>(factor * even) & 0xffff, high = static_cast<uint32_t>(factor * odd)
                                                                               << 16;
        return static_cast<int32_t>(low | high);
    }
};

}  // namespace decodestep::DECODESTEP_ISA

#if defined(__AVX512BF16__) && defined(__AVX512VNNI__) && defined(__AVX512VBMI2__)
#include "simd/avx512_byte_sums.h"
namespace decodestep::DECODESTEP_ISA {
// Sums of two products of int16.
DECODESTEP_INLINE i32x16 multiply_pairs(i32x16 a, i32x16 b) { return {_mm512_madd_epi16(a.v, b.v)}; }
}  // namespace decodestep::DECODESTEP_ISA
#include "simd/wide_byte_sums.h"
#elif defined(__AVX512F__)
#include "simd/avx512_byte_sums.h"
#include "simd/avx512_narrow_byte_sums.h"
#elif defined(__AVX2__)
#include "simd/avx2_byte_sums.h"
#else
#include "simd/portable_byte_sums.h"
#include "simd/wide_byte_sums.h"
#endif

#if defined(__AVX512F__) || !defined(__AVX2__)
namespace decodestep::DECODESTEP_ISA {

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

// Weights of dot_bytes in the form in which many tokens are multiplied by them.
using StoredBytes = u8x64;
constexpr size_t kStoredBytes = 64;
DECODESTEP_INLINE void store_weights(uint8_t* p, u8x64 w) { store_bits(p, words_of(w)); }
DECODESTEP_INLINE StoredBytes load_weights(const uint8_t* p) { return load_bytes(p); }

}  // namespace decodestep::DECODESTEP_ISA
#endif
