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

// Writes the integers of a piece, of up to eight bits.
template <Format F>
DECODESTEP_INLINE void put_integers(const uint8_t* q, SplitPiece& piece) {
    for (size_t i = 0; i < 16; ++i) piece.low[i] = static_cast<uint8_t>((q[i] & 15) | q[16 + i] << 4);
    std::memset(piece.upper, 0, sizeof piece.upper);
    for (size_t i = 0; i < 32; ++i) {
        if constexpr (traits(F).upper_bits == 1) piece.upper[i % 4] |= static_cast<uint8_t>(q[i] >> 4 << i / 4);
        if constexpr (traits(F).upper_bits == 2)
            piece.upper[i / 16 * 4 + i % 4] |= static_cast<uint8_t>(q[i] >> 4 << i % 16 / 4 * 2);
    }
}

DECODESTEP_INLINE void put_f16(float value, uint8_t* out) {
    const F16 half = to_f16(value);
    std::memcpy(out, &half, sizeof half);
}

}  // namespace decodestep::DECODESTEP_BUILD
