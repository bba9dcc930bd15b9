// Primitives for products with panels of bytes and nibbles: one file per target, selected here as in target.h.
#pragma once

#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {

// Sums of bytes 0, 1, 4, 5, ... and of the others.
struct PairSums {
    int32_t even, odd;

    int32_t as_words(int32_t factor) const {
        const auto low = static_cast<uint32_t>(factor * even) & 0xffff, high = static_cast<uint32_t>(factor * odd)
                                                                               << 16;
        return static_cast<int32_t>(low | high);
    }
};

}  // namespace decodestep::DECODESTEP_BUILD

#if defined(__AVX512F__)
#include "simd/avx512_byte_sums.h"
#elif defined(__AVX2__)
#include "simd/avx2_byte_sums.h"
#elif defined(DECODESTEP_NEON)
#include "simd/neon_byte_sums.h"
#else
#include "simd/portable_byte_sums.h"
#endif

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || !defined(__AVX2__)
#include "simd/wide_byte_sums.h"
#if defined(DECODESTEP_NEON) && !defined(__ARM_FEATURE_MATMUL_INT8)
#include "simd/neon_stored_bytes.h"
#else
#include "simd/stored_bytes.h"
#endif
#elif defined(__AVX512F__)
#include "simd/avx512_narrow_byte_sums.h"
#else
#include "simd/avx2_narrow_byte_sums.h"
#endif
