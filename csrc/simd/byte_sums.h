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

}  // namespace decodestep::DECODESTEP_ISA
#endif
