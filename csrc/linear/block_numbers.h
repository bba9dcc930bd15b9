// The numbers of blocks that values are quantised to: float16 scales and integers.
#pragma once

#include <cstring>
#include <limits>

#include "core/half.h"
#include "linear/split_blocks.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// To nearest, ties to even, within [least, most]; `least` for NaN.
DECODESTEP_INLINE float whole_within(float value, float least, float most) {
    const float whole = __builtin_rintf(value);
    return whole > least ? (whole < most ? whole : most) : least;
}

// Puts two bits of each of a piece's integers side by side, from bit `at` on.
DECODESTEP_INLINE void put_two_bits(const uint8_t* q, size_t at, uint8_t* out) {
    std::memset(out, 0, 8);
    for (size_t i = 0; i < 32; ++i) out[i / 16 * 4 + i % 4] |= static_cast<uint8_t>((q[i] >> at & 3) << i % 16 / 4 * 2);
}

// Writes the integers of a piece, of up to eight bits.
template <Format F>
DECODESTEP_INLINE void put_integers(const uint8_t* q, SplitPiece& piece) {
    constexpr size_t low = traits(F).low_bits, upper = traits(F).upper_bits;
    if constexpr (low == 4) {
        for (size_t i = 0; i < 16; ++i) piece.low[i] = static_cast<uint8_t>((q[i] & 15) | q[16 + i] << 4);
    } else {
        static_assert(low == 2);
        put_two_bits(q, 0, piece.low);
    }
    if constexpr (upper == 2) {
        put_two_bits(q, low, piece.upper);
    } else if constexpr (upper == 1) {
        std::memset(piece.upper, 0, 4);
        for (size_t i = 0; i < 32; ++i) piece.upper[i % 4] |= static_cast<uint8_t>(q[i] >> low << i / 4);
    } else {
        static_assert(upper == 0);
    }
}

DECODESTEP_INLINE void put_f16(float value, uint8_t* out) {
    const F16 half = to_f16(value);
    std::memcpy(out, &half, sizeof half);
}

}  // namespace decodestep::DECODESTEP_BUILD
