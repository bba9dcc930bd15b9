// Sixteen lanes on every target: the primitives of target.h and fallbacks.h, and functions built on them.
#pragma once

#include <limits>

#include "simd/fallbacks.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr bool kManyRegisters = kVectorRegisters >= 32;  // for larger tiles of accumulators

// How often loops over the vectors and quads of a product are unrolled, all of which are shorter: where registers hold
// few vectors, that would only make the code larger.
constexpr int kUnrolled = kVectorRegisters >= 8 ? 16 : 1;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

DECODESTEP_INLINE f32x16 load(const Bf16* p) { return from_bf16(p); }
DECODESTEP_INLINE f32x16 load(const F16* p) { return from_f16(p); }

// The first n lanes (0 < n <= 16) from memory; zeros follow.
DECODESTEP_INLINE f32x16 load_partial(const float* p, size_t n) {
    float lanes[kLanes] = {};
    std::memcpy(lanes, p, n * sizeof(float));
    return load(lanes);
}

DECODESTEP_INLINE void store_partial(float* p, f32x16 a, size_t n) {
    float lanes[kLanes];
    store(lanes, a);
    std::memcpy(p, lanes, n * sizeof(float));
}

// The largest of n values, -inf if there is none; NaN is ignored.
DECODESTEP_INLINE float largest(const float* values, size_t n) {
    constexpr size_t kChains = 4;  // of maxima, each of which waits for the one before
    f32x16 best[kChains];
    for (f32x16& chain : best) chain = broadcast(kMinusInfinity);
    size_t i = 0;
    for (; i + kChains * kLanes <= n; i += kChains * kLanes)
#pragma GCC unroll 4
        for (size_t c = 0; c < kChains; ++c) best[c] = max(load(values + i + c * kLanes), best[c]);
    for (; i + kLanes <= n; i += kLanes) best[0] = max(load(values + i), best[0]);
    float top = largest(max(max(best[0], best[1]), max(best[2], best[3])));
    for (; i < n; ++i) top = values[i] > top ? values[i] : top;
    return top;
}

DECODESTEP_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

// Prefetches into the L2 cache: for memory that will be read soon but exceeds the L1 cache.
DECODESTEP_INLINE void prefetch_to_second_level(const void* p) { __builtin_prefetch(p, 0, 2); }

// Prefetches every cache line of memory that will be read soon; `bytes` is a constant after inlining.
DECODESTEP_INLINE void prefetch(const void* memory, size_t bytes) {
#pragma GCC unroll 32
    for (size_t at = 0; at < bytes; at += 64) prefetch(static_cast<const uint8_t*>(memory) + at);
}

// Prefetches memory that will be written soon: results that are too far apart for the hardware prefetcher.
DECODESTEP_INLINE void prefetch_for_write(const void* memory, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const uint8_t*>(memory) + at, 1, 3);
}

}  // namespace decodestep::DECODESTEP_BUILD
