// Activations as products with panels read them: bytes with a scale for each 32 values, or float32.
//
// An outlier costs the other values of its block their precision, and most of the error of a row comes from the few
// blocks that hold one. So what rounding leaves of a row's coarsest block is kept as bytes too.
#pragma once

#include <algorithm>
#include <cmath>

#include "simd/rounding.h"

namespace decodestep::DECODESTEP_ISA {

// Blocks of 32 bytes, and of each block the value of a unit and the sum of the bytes.
struct ByteBlocks {
    int8_t* bytes = nullptr;
    float* unit = nullptr;
    int32_t* sum = nullptr;
};

// Tokens of `in` values, a multiple of 32. Either form may be missing: it is then neither written nor read.
struct Activations {
    size_t in = 0;
    float* values = nullptr;
    ByteBlocks rounded{}, rest{};   // [tokens, blocks()] and [tokens]
    int32_t* rest_block = nullptr;  // [tokens]: whose rest it is
    float* total = nullptr;  // [tokens, blocks()]: the sum of what the bytes of a block and of its rest stand for

    size_t blocks() const { return in / 32; }

    static size_t floats(size_t tokens, size_t in, bool as_values, bool as_bytes) {
        const Activations x{.in = in};
        return tokens * ((as_values ? in : 0) + (as_bytes ? 11 * x.blocks() + 11 : 0));
    }
    // space: of floats(...) floats.
    static Activations in_space(float* space, size_t tokens, size_t in, bool as_values, bool as_bytes) {
        Activations x{.in = in};
        const auto take = [&](size_t floats) {
            float* taken = space;
            space += tokens * floats;
            return taken;
        };
        const auto take_blocks = [&](size_t count) {
            return ByteBlocks{reinterpret_cast<int8_t*>(take(8 * count)), take(count),
                              reinterpret_cast<int32_t*>(take(count))};
        };
        if (as_values) x.values = take(in);
        if (!as_bytes) return x;
        x.rounded = take_blocks(x.blocks());
        x.total = take(x.blocks());
        x.rest = take_blocks(1);
        x.rest_block = reinterpret_cast<int32_t*>(take(1));
        return x;
    }
};

struct Block {
    f32x16 first, second;
};

// Rounds sixteen values in [-127, 127] to integers, and returns their sum. NaN becomes 0; the block's unit is NaN then,
// and so is every result.
DECODESTEP_INLINE int32_t round_to_bytes(f32x16 x, int8_t* bytes) {
    const i32x16 rounded = round_to_int(x);
    store_i8(bytes, rounded);
    return sum(rounded);
}

// Rounds 32 values to bytes, block `at`.
DECODESTEP_INLINE void round_block(const ByteBlocks& x, size_t at, const Block& values) {
    const float most = largest_magnitude(values.first, values.second);
    // A block below 1e-36 has no reciprocal in float32: it counts as zeros.
    const f32x16 inverse = broadcast(most < 1e-36f ? 0.0f : 127.0f / most);
    int8_t* bytes = x.bytes + 32 * at;
    x.sum[at] = round_to_bytes(values.first * inverse, bytes) + round_to_bytes(values.second * inverse, bytes + kLanes);
    x.unit[at] = most / 127.0f;
}

// Puts 32 values in place, block b of token t.
DECODESTEP_INLINE void put_block(const Activations& x, size_t t, size_t b, const Block& values) {
    if (x.values) {
        store(x.values + t * x.in + 32 * b, values.first);
        store(x.values + t * x.in + 32 * b + kLanes, values.second);
    }
    if (x.rounded.bytes) {
        const size_t at = t * x.blocks() + b;
        round_block(x.rounded, at, values);
        x.total[at] = x.rounded.unit[at] * static_cast<float>(x.rounded.sum[at]);
    }
}

// Puts what rounding has left of block b.
DECODESTEP_INLINE void put_rest(const Activations& x, size_t t, size_t b, const Block& values) {
    const size_t at = t * x.blocks() + b;
    const int8_t* bytes = x.rounded.bytes + 32 * at;
    const f32x16 unit = broadcast(x.rounded.unit[at]);
    round_block(x.rest, t, {values.first - unit * from_i8(bytes), values.second - unit * from_i8(bytes + kLanes)});
    x.rest_block[t] = static_cast<int32_t>(b);
    x.total[at] += x.rest.unit[t] * static_cast<float>(x.rest.sum[t]);
}

// Puts a row of blocks, block(b) each.
template <class MakeBlock>
DECODESTEP_INLINE void put_blocks(const Activations& x, size_t t, MakeBlock&& block) {
    for (size_t b = 0; b < x.blocks(); ++b) put_block(x, t, b, block(b));
    if (!x.rounded.bytes || x.blocks() == 0) return;
    const float* units = x.rounded.unit + t * x.blocks();
    const auto coarsest = static_cast<size_t>(std::max_element(units, units + x.blocks()) - units);
    put_rest(x, t, coarsest, block(coarsest));
}

// Puts a row of `width` values, at most x.in, and zeros behind them.
inline void put_row(const Activations& x, size_t t, const float* row, size_t width) {
    put_blocks(x, t, [&](size_t b) -> Block {
        const size_t left = width - 32 * b;
        if (left >= 32) return {load(row + 32 * b), load(row + 32 * b + kLanes)};
        float tail[32] = {};
        std::memcpy(tail, row + 32 * b, left * sizeof(float));
        return {load(tail), load(tail + kLanes)};
    });
}

}  // namespace decodestep::DECODESTEP_ISA
