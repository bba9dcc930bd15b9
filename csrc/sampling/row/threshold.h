// Searches for a threshold that a given number of tokens reach, from counts over a few of the row's values, such as the
// maxima of its groups.
#pragma once

#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {

// Floats as integers of the same order, so that halving an interval ends after 32 steps whatever its ends.
DECODESTEP_INLINE uint32_t ordered(float x) {
    const auto bits = std::bit_cast<uint32_t>(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
DECODESTEP_INLINE float from_ordered(uint32_t key) {
    return std::bit_cast<float>(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key);
}

DECODESTEP_INLINE size_t count_at_least(const float* values, size_t n, float least) {
    const f32x16 t = broadcast(least);
    size_t count = 0, i = 0;
    for (; i + kLanes <= n; i += kLanes) count += static_cast<size_t>(std::popcount(at_least(load(values + i), t)));
    for (; i < n; ++i) count += values[i] >= least;
    return count;
}

// How many tokens more than `count` a list may have: the steps of a closer search would cost more than they do.
constexpr size_t spare_tokens(size_t count) { return count / 4 + 4; }

// A threshold t with surely_at_least(t) >= count, and at most `slack` more than that, unless values are equal; -inf
// where there is none. surely_at_least(t) must not rise with t; `largest` is where the search starts, downwards.
template <class SurelyAtLeast>
float threshold_reached_by(size_t count, size_t slack, float largest, SurelyAtLeast&& surely_at_least) {
    uint32_t high = ordered(largest) + 1, low = high;
    const uint32_t bottom = ordered(kMinusInfinity);
    const auto reached = [&](size_t found) { return found >= count; };
    size_t found = 0;
    for (uint64_t step = 1u << 18; low > bottom && !reached(found); step *= 2) {
        high = low;
        low -= static_cast<uint32_t>(std::min<uint64_t>(step, low - bottom));
        found = surely_at_least(from_ordered(low));
    }
    while (high - low > 1 && found > count + slack) {
        const uint32_t middle = low + (high - low) / 2;
        const size_t there = surely_at_least(from_ordered(middle));
        if (reached(there)) {
            low = middle;
            found = there;
        } else {
            high = middle;
        }
    }
    return reached(found) ? from_ordered(low) : kMinusInfinity;
}

}  // namespace decodestep::DECODESTEP_BUILD
