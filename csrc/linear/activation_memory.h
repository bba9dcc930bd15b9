// The memory layout of activations in the forms that products with panels read: int8 with a scale for each block of 32
// values, or float32. activations.h fills it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/compiler.h"
#include "core/division.h"

namespace decodestep {

// Blocks of 32 values: value = scale * byte, and the sum of each block's bytes. half_sums are those of its first and of
// its last sixteen bytes, for weights with a scale for each sixteen: the sum of bytes 0, 1, 4, 5, ..., and of the
// others, as two int16, as ByteSums hold them.
struct QuantisedBlocks {
    int8_t* bytes = nullptr;
    float* scale = nullptr;
    int32_t *sum = nullptr, *half_sums = nullptr;
};

// Consecutive blocks of a token, contiguous in memory: as many as the largest panel blocks have.
constexpr size_t kStretch = 8;

// Tokens of `in` values, a multiple of 32, in one of the forms or both. A form whose pointers are null is neither
// written nor read. Blocks are stored in stretches of eight: a stretch of all tokens, then the next stretch of all
// tokens. A product with many tokens processes a stretch at a time, so it reads memory from end to end.
struct Activations {
    size_t in = 0, tokens = 0;
    float* values = nullptr;            // [stretches, tokens, kStretch * 32]; the last stretch's end is unspecified
    QuantisedBlocks quantised{};        // [stretches, tokens, kStretch]; as above
    QuantisedBlocks residual{};         // [tokens]: the rounding error of one block of each token, quantised
    int32_t* residual_block = nullptr;  // [tokens]: the number of that block
    float* block_sum = nullptr;         // as `quantised`: sum of a block's quantised values, residual included

    DECODESTEP_INLINE size_t blocks() const { return in / 32; }
    // The index of block b of token t.
    DECODESTEP_INLINE size_t at(size_t t, size_t b) const {
        return (b / kStretch * tokens + t) * kStretch + b % kStretch;
    }

    // The floats that one or both forms need: a block of 32 takes 8 floats of bytes, a scale, three sums and a
    // block_sum.
    static DECODESTEP_INLINE size_t floats(size_t tokens, size_t in, bool as_values, bool as_bytes) {
        return tokens * ((as_values ? 32 * whole_stretches(in) : 0) + (as_bytes ? 13 * whole_stretches(in) + 13 : 0));
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
        if (as_values) x.values = take(32 * whole_stretches(in));
        if (!as_bytes) return x;
        x.quantised = take_blocks(whole_stretches(in));
        x.block_sum = take(whole_stretches(in));
        x.residual = take_blocks(1);
        x.residual_block = reinterpret_cast<int32_t*>(take(1));
        return x;
    }

  private:
    static DECODESTEP_INLINE size_t whole_stretches(size_t in) { return round_up(in / 32, kStretch); }
};

}  // namespace decodestep
