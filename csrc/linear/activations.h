// Activations in the forms that products with panels read: int8 with a scale for each block of 32 values, or float32.
#pragma once

#include "linear/activation_memory.h"
#include "simd/rounding.h"

namespace decodestep::DECODESTEP_BUILD {

// Copies a row, in every form that both sides have.
inline void copy_row(const Activations& from, size_t row, const Activations& to, size_t to_row) {
    const auto copy = [](const auto* source, size_t at, auto* target, size_t to_at, size_t items) {
        if (source && target) std::memcpy(target + to_at * items, source + at * items, items * sizeof *source);
    };
    const auto copy_blocks = [&](const QuantisedBlocks& source, size_t at, const QuantisedBlocks& target, size_t to_at,
                                 size_t blocks) {
        copy(source.bytes, at, target.bytes, to_at, 32 * blocks);
        copy(source.scale, at, target.scale, to_at, blocks);
        copy(source.sum, at, target.sum, to_at, blocks);
        copy(source.half_sums, at, target.half_sums, to_at, 2 * blocks);
    };
    for (size_t b = 0; b < from.blocks(); b += kStretch) {
        const size_t at = from.at(row, b) / kStretch, to_at = to.at(to_row, b) / kStretch;
        copy(from.values, at, to.values, to_at, 32 * kStretch);
        copy_blocks(from.quantised, at, to.quantised, to_at, kStretch);
        copy(from.block_sum, at, to.block_sum, to_at, kStretch);
    }
    copy_blocks(from.residual, row, to.residual, to_row, 1);
    copy(from.residual_block, row, to.residual_block, to_row, 1);
}

// Quantises 32 values as block `at`.
DECODESTEP_INLINE void quantise_block(const QuantisedBlocks& x, size_t at, const f32x32& values) {
    const float largest = largest_magnitude(values.first, values.second);
    // A block below 1e-36 counts as zeros: 127 / largest would overflow float32.
    const f32x16 inverse = broadcast(largest < 1e-36f ? 0.0f : 127.0f / largest);
    // A NaN becomes 0; the block's scale is NaN then, and so is every result.
    const auto [first, second] = round_to_bytes(values.first * inverse, values.second * inverse, x.bytes + 32 * at);
    x.sum[at] = first.even + first.odd + second.even + second.odd;
    x.half_sums[2 * at] = first.as_words();
    x.half_sums[2 * at + 1] = second.as_words();
    x.scale[at] = largest / 127.0f;
}

// Stores block b of token t, in the forms that x has.
DECODESTEP_INLINE void store_block(const Activations& x, size_t t, size_t b, const f32x32& values) {
    if (x.values) {
        store(x.values + 32 * x.at(t, b), values.first);
        store(x.values + 32 * x.at(t, b) + kLanes, values.second);
    }
    if (x.quantised.bytes) {
        const size_t at = x.at(t, b);
        quantise_block(x.quantised, at, values);
        x.block_sum[at] = x.quantised.scale[at] * static_cast<float>(x.quantised.sum[at]);
    }
}

// Stores the residual of block b, after the block itself.
DECODESTEP_INLINE void store_residual(const Activations& x, size_t t, size_t b, const f32x32& values) {
    const size_t at = x.at(t, b);
    const int8_t* bytes = x.quantised.bytes + 32 * at;
    const f32x16 scale = broadcast(x.quantised.scale[at]);
    quantise_block(x.residual, t,
                   {values.first - scale * from_i8(bytes), values.second - scale * from_i8(bytes + kLanes)});
    x.residual_block[t] = static_cast<int32_t>(b);
    x.block_sum[at] += x.residual.scale[t] * static_cast<float>(x.residual.sum[t]);
}

// Stores token t, whose block b is block(b). The function is called twice for the block that gets a residual, the first
// of those with the largest scale.
template <class MakeBlock>
DECODESTEP_INLINE void store_blocks(const Activations& x, size_t t, MakeBlock&& block) {
    for (size_t b = 0; b < x.blocks(); ++b) store_block(x, t, b, block(b));
    if (!x.quantised.bytes || x.blocks() == 0) return;
    size_t coarsest = 0;
    for (size_t b = 1; b < x.blocks(); ++b)
        if (x.quantised.scale[x.at(t, coarsest)] < x.quantised.scale[x.at(t, b)]) coarsest = b;
    store_residual(x, t, coarsest, block(coarsest));
}

// Stores token t: `width` values, at most x.in, padded with zeros.
inline void store_row(const Activations& x, size_t t, const float* row, size_t width) {
    store_blocks(x, t, [&](size_t b) -> f32x32 {
        const size_t left = width - 32 * b;
        if (left >= 32) return {load(row + 32 * b), load(row + 32 * b + kLanes)};
        float tail[32] = {};
        std::memcpy(tail, row + 32 * b, left * sizeof(float));
        return {load(tail), load(tail + kLanes)};
    });
}

}  // namespace decodestep::DECODESTEP_BUILD
