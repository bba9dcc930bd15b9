// Where activations lie in the forms in which products with panels read them: as int8 with a scale for each block of 32
// values, or as float32. activations.h puts them there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/compiler.h"

namespace decodestep {

// Blocks of 32 values, value = scale * byte, the sum of each block's bytes, and for each of its halves where the sums
// of products with Q6_K begin, whose bytes are 32 above its weights: -32 times the sum of bytes 0, 1, 4, 5, ..., and
// that of the others, as two int16.
struct QuantisedBlocks {
    int8_t* bytes = nullptr;
    float* scale = nullptr;
    int32_t *sum = nullptr, *half_starts = nullptr;
};

// Blocks of a token that lie side by side: as many as the largest blocks of panels have.
constexpr size_t kStretch = 8;

// Tokens of `in` values, a multiple of 32, in one of the forms or both. A form whose pointers are null is neither
// written nor read. Quantised blocks lie in stretches of eight, those of all tokens and then the next eight of all
// tokens: products with many tokens take a stretch at a time, and so find the tokens at distances that are constants.
struct Activations {
    size_t in = 0, tokens = 0;
    float* values = nullptr;            // [tokens, in]
    QuantisedBlocks quantised{};        // [stretches, tokens, kStretch], the last stretch filled up with anything
    QuantisedBlocks residual{};         // [tokens]: what rounding leaves of one block of each token
    int32_t* residual_block = nullptr;  // [tokens]: the number of that block
    float* block_sum = nullptr;         // as `quantised`: sum of a block's quantised values, residual included

    DECODESTEP_INLINE size_t blocks() const { return in / 32; }
    // The place of block b of token t.
    DECODESTEP_INLINE size_t at(size_t t, size_t b) const {
        return (b / kStretch * tokens + t) * kStretch + b % kStretch;
    }

    // Memory for both forms or one: a block of 32 is 8 floats of bytes, a scale, three sums and a block_sum.
    static DECODESTEP_INLINE size_t floats(size_t tokens, size_t in, bool as_values, bool as_bytes) {
        return tokens * ((as_values ? in : 0) + (as_bytes ? 13 * whole_stretches(in) + 13 : 0));
    }
    // space: of floats(...) floats.
    static DECODESTEP_INLINE Activations in_space(float* space, size_t tokens, size_t in, bool as_values,
                                                  bool as_bytes) {
        Activations x{.in = in, .tokens = tokens};
        const auto take = [&](size_t floats_per_token) DECODESTEP_INLINE_LAMBDA {
            float* taken = space;
            space += tokens * floats_per_token;
            return taken;
        };
        const auto take_blocks = [&](size_t count) DECODESTEP_INLINE_LAMBDA {
            return QuantisedBlocks{reinterpret_cast<int8_t*>(take(8 * count)), take(count),
                                   reinterpret_cast<int32_t*>(take(count)),
                                   reinterpret_cast<int32_t*>(take(2 * count))};
        };
        if (as_values) x.values = take(in);
        if (!as_bytes) return x;
        x.quantised = take_blocks(whole_stretches(in));
        x.block_sum = take(whole_stretches(in));
        x.residual = take_blocks(1);
        x.residual_block = reinterpret_cast<int32_t*>(take(1));
        return x;
    }

  private:
    static DECODESTEP_INLINE size_t whole_stretches(size_t in) {
        return (in / 32 + kStretch - 1) / kStretch * kStretch;
    }
};

}  // namespace decodestep
