// What products with panels of bytes and nibbles need of a target beside its other primitives: a file for each, chosen
// here as in target.h.
#pragma once

#include "simd/simd.h"

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

// Rounds 32 values in [-127, 127] to bytes, ties to even, NaN to 0; returns the sums of the first and of the last
// sixteen.
DECODESTEP_INLINE std::pair<int32_t, int32_t> round_to_bytes(f32x16 first, f32x16 second, int8_t* bytes) {
    const i32x16 a = round_to_int(first), b = round_to_int(second);
    store_i8(bytes, a);
    store_i8(bytes + kLanes, b);
    return {sum(a), sum(b)};
}

// sums += (first * x + second * y) * factors
DECODESTEP_INLINE void add_two(i32x16& sums, u8x64 first, i8x4 x, u8x64 second, i8x4 y, i32x16 factors) {
    ByteSums products = first_bytes(first, x);
    add_bytes(products, second, y);
    sums = sums + total(products, factors);
}

// Weights of dot_bytes in the form in which many tokens are multiplied by them.
using StoredBytes = u8x64;
constexpr size_t kStoredBytes = 64;
DECODESTEP_INLINE void store_weights(uint8_t* p, u8x64 w) { store_bits(p, words_of(w)); }
DECODESTEP_INLINE StoredBytes load_weights(const uint8_t* p) { return load_bytes(p); }

}  // namespace decodestep::DECODESTEP_ISA
#endif
