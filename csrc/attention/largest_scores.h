// The positions of the largest of many scores. Of equal scores the lower position comes first; 0 and -0 are equal; NaN
// comes after all numbers.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace decodestep::DECODESTEP_BUILD {

class LargestScores {
  public:
    // Writes the positions of the `count` largest of n scores in ascending order, or all if they are fewer, then -1.
    static void list(const float* scores, size_t n, size_t count, int32_t* positions) {
        size_t listed = 0;
        if (n <= count) {
            for (; listed < n; ++listed) positions[listed] = static_cast<int32_t>(listed);
        } else {
            const Bound least = bound(scores, n, count);
            size_t equal = least.equal;
            for (size_t j = 0; listed < count; ++j) {
                const uint32_t rank = rank_of(scores[j]);
                if (rank < least.rank || (rank == least.rank && equal == 0)) continue;
                equal -= rank == least.rank;
                positions[listed++] = static_cast<int32_t>(j);
            }
        }
        std::fill(positions + listed, positions + count, -1);
    }

    // Sorts the positions that `list` has written by their scores.
    static void order(const float* scores, int32_t* positions, size_t count) {
        int32_t* const end = std::find(positions, positions + count, -1);
        // Not stable_sort: functions of it would be shared by the builds.
        std::sort(positions, end, [=](int32_t a, int32_t b) {
            const uint32_t rank = rank_of(scores[a]), other = rank_of(scores[b]);
            return rank > other || (rank == other && a < b);
        });
    }

  private:
    // The smallest rank that is listed, and how many scores of that rank are.
    struct Bound {
        uint32_t rank;
        size_t equal;
    };

    // Ascending with the score; NaN is 0.
    static uint32_t rank_of(float score) {
        const auto bits = std::bit_cast<uint32_t>(score + 0.0f);  // of -0: 0
        const uint32_t rank = bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
        return score == score ? rank : 0;
    }

    // Digit by digit, from the highest: counts the scores that begin as the bound does, by their next digit.
    static Bound bound(const float* scores, size_t n, size_t count) {
        constexpr int kDigits[] = {11, 11, 10};
        uint32_t begin = 0;
        int left = 32;
        for (const int digits : kDigits) {
            uint32_t counts[1 << 11] = {};
            const int below = left - digits;
            const uint32_t last = (1u << digits) - 1;
            for (size_t j = 0; j < n; ++j) {
                const uint32_t rank = rank_of(scores[j]);
                if (left == 32 || rank >> left == begin) ++counts[rank >> below & last];
            }
            uint32_t digit = last;
            for (; counts[digit] < count; --digit) count -= counts[digit];
            begin = begin << digits | digit;
            left = below;
        }
        return {begin, count};
    }
};

}  // namespace decodestep::DECODESTEP_BUILD
