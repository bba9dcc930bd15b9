// Ranking by scores: 64-bit keys whose upper half orders the scores, and a sort of them.
#pragma once

#include <utility>

#include "sampling/row/threshold.h"

namespace decodestep::DECODESTEP_BUILD {

// A key that is lower for higher scores. Its lower half is zero, for the caller to use.
DECODESTEP_INLINE uint64_t descending_key(float score) { return static_cast<uint64_t>(~ordered(score)) << 32; }

// Sorts keys by their upper halves, stably: a radix sort. Returns the array that has the result, `keys` or `spare`.
inline uint64_t* sorted_by_upper_half(uint64_t* keys, uint64_t* spare, size_t n) {
    constexpr int digits = 3, bits = 11;
    constexpr size_t values = size_t{1} << bits;
    const auto digit = [](uint64_t key, int which) { return key >> (32 + bits * which) & (values - 1); };
    uint32_t begin[digits][values] = {};
    for (size_t i = 0; i < n; ++i)
        for (int which = 0; which < digits; ++which) ++begin[which][digit(keys[i], which)];
    for (auto& places : begin) {
        uint32_t next = 0;
        for (uint32_t& place : places) next += std::exchange(place, next);
    }
    for (int which = 0; which < digits; ++which) {
        for (size_t i = 0; i < n; ++i) spare[begin[which][digit(keys[i], which)]++] = keys[i];
        std::swap(keys, spare);
    }
    return keys;
}

}  // namespace decodestep::DECODESTEP_BUILD
