// Products of many tokens with a panel by integer tiles (AMX). The panel is widened to signed bytes once for all
// tokens, a stretch of inputs at a time. A tile holds the sums of 16 tokens over 32 inputs, which are then scaled as in
// byte_tile.h, with the same bits.
#pragma once

#include "linear/byte_tile.h"
#include "linear/stored_tile.h"
#include "simd/integer_tiles.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr size_t kGroup = IntegerTiles::kTokens;
static_assert(kTileTokens % kGroup == 0);  // outputs have room for whole groups

template <Format F>
DECODESTEP_INLINE void store_signed_quads(const PanelQuads<F>& quads, int8_t* to) {
#pragma GCC unroll 8
    for (size_t i = 0; i < kQuads; ++i) {
        const size_t j = i / 2 + i % 2 * 4;  // a byte's low nibble, then its high one
#pragma GCC unroll 2
        for (size_t v = 0; v < 2; ++v) store_signed(to + kQuadBytes * j + 64 * v, quads.quad(j, v), traits(F).offset);
    }
}

// A stretch of blocks of sixteen tokens; missing tokens are zeros.
class TokenGroup {
  public:
    TokenGroup(const Activations& x, size_t first, size_t count, size_t block) {
        const size_t at = x.at(first, block);
        if (count == kGroup) {
            x_.quantised.bytes = x.quantised.bytes + kBlockInputs * at;
            x_.quantised.scale = x.quantised.scale + at;
            x_.quantised.half_sums = x.quantised.half_sums + 2 * at;
            x_.block_sum = x.block_sum + at;
            return;
        }
        const auto copy = [&]<class Row>(const auto* from, Row(&to)[kGroup]) {
            std::memcpy(to, from, count * sizeof(Row));
            std::memset(to + count, 0, (kGroup - count) * sizeof(Row));
        };
        copy(x.quantised.bytes + kBlockInputs * at, bytes_);
        copy(x.quantised.scale + at, scale_);
        copy(x.quantised.half_sums + 2 * at, half_sums_);
        copy(x.block_sum + at, block_sum_);
        x_.quantised.bytes = bytes_[0];
        x_.quantised.scale = scale_[0];
        x_.quantised.half_sums = half_sums_[0];
        x_.block_sum = block_sum_[0];
    }
    TokenGroup(const TokenGroup&) = delete;
    TokenGroup& operator=(const TokenGroup&) = delete;

    const Activations& get() const { return x_; }

  private:
    Activations x_{};
    int8_t bytes_[kGroup][kStretch * kBlockInputs];
    float scale_[kGroup][kStretch], block_sum_[kGroup][kStretch];
    int32_t half_sums_[kGroup][2 * kStretch];
};

// The integer scales of a piece as float32, one for each of its sub-blocks; none if the format has none.
template <Format F>
struct IntegerScales {
    f32x16 first, second;

    DECODESTEP_INLINE IntegerScales(const uint8_t* piece, size_t v) {
        const uint8_t* scales = piece + panel_layout(F).low + panel_layout(F).upper;
        if constexpr (has_integer_scales(F) && sub_blocks(F) > 1) {
            const i32x16 pairs = scale_pairs<F>(scales, v);
            first = to_float(first_scales(pairs));
            second = to_float(second_scales(pairs));
        } else if constexpr (has_integer_scales(F)) {
            static_assert(traits(F).scale == ScaleType::u8);
            first = to_float(load_u8(scales + 16 * v));
        }
    }
};

// A stretch of a panel, and its products with sixteen tokens.
template <Format F>
class PanelStretch {
  public:
    // Pieces of the panel, stored at `block`.
    PanelStretch(const uint8_t* block, size_t pieces) : block_(block), pieces_(pieces) {}

    const uint8_t* piece(size_t i) const {
        return block_ + i / layout.pieces * layout.block_bytes() + i % layout.pieces * layout.piece_bytes();
    }

    DECODESTEP_INLINE void store_piece(size_t i) {
        store_signed_quads(PanelQuads<F>{piece(i)}, weights_ + kQuads * kQuadBytes * i);
    }

    // outputs += the products with the group.
    DECODESTEP_INLINE void add(IntegerTiles& tiles, const Activations& x, float (*outputs)[kPanelOutputs]) {
        alignas(64) float block_sums[layout.pieces > 1 ? kGroup : 1][kPanelOutputs] = {};
        const auto y = layout.pieces > 1 ? block_sums : outputs;
        for (size_t first = 0; first < pieces_; first += kAtOnce) {
            const size_t end = std::min(first + kAtOnce, pieces_);
            tiles.multiply((end - first) * kParts, kStretch * kBlockInputs, [&](size_t i) DECODESTEP_INLINE_LAMBDA {
                const size_t at = kInputs * (first * kParts + i);
                return IntegerTiles::Product{x.quantised.bytes + at, weights_ + kPanelOutputs * at, sums_[i]};
            });
            for (size_t v = 0; v < 2; ++v) add_pieces(first, end, v, x, y);
        }
        if constexpr (layout.pieces > 1)
            for (size_t v = 0; v < 2; ++v) finish(v, x, block_sums, outputs);
    }

  private:
    static constexpr PanelLayout layout = panel_layout(F);
    static constexpr size_t kParts = sub_blocks(F), kInputs = kBlockInputs / kParts;
    // The number of pieces whose products are kept until they are scaled: they fit in the L1 cache beside their inputs.
    static constexpr size_t kAtOnce = 8 / kParts;
    using Sums = FloatSums<kGroup, 1>;

    // y += pieces [first, end), whose products are in sums_.
    DECODESTEP_INLINE void add_pieces(size_t first, size_t end, size_t v, const Activations& x,
                                      float (*outputs)[kPanelOutputs]) const {
        Sums y;
        load_outputs<kGroup, 1>(outputs, v, y);
        for (size_t i = first; i < end; ++i) {
            if constexpr (layout.pieces == 1 && traits(F).minima) add_minima<F, kGroup, 1>(v, piece(i), x, i, y);
            const IntegerScales<F> scales(piece(i), v);
            const f32x16 scale = float_scales<F>(piece(i), v);
#pragma GCC unroll 16
            for (size_t t = 0; t < kGroup; ++t) {
                f32x16 sums = to_float(load_bits(sums_[(i - first) * kParts][v][t]));
                // These products and their sums are below 2^24, so they are exact in float32.
                if constexpr (has_integer_scales(F)) sums = sums * scales.first;
                if constexpr (kParts == 2)
                    sums = fma(to_float(load_bits(sums_[(i - first) * kParts + 1][v][t])), scales.second, sums);
                y[t][0] = add_sums<F>(sums, scale, broadcast(x.quantised.scale[i + t * kStretch]), y[t][0]);
            }
        }
        store_outputs<kGroup, 1>(y, v, outputs);
    }

    DECODESTEP_INLINE void finish(size_t v, const Activations& x, const float (*block_sums)[kPanelOutputs],
                                  float (*outputs)[kPanelOutputs]) const {
        Sums sums, y;
        load_outputs<kGroup, 1>(block_sums, v, sums);
        load_outputs<kGroup, 1>(outputs, v, y);
        finish_block<F, kGroup, 1>(v, block_, x, 0, sums, y);
        store_outputs<kGroup, 1>(y, v, outputs);
    }

    const uint8_t* block_;
    size_t pieces_;
    alignas(64) int8_t weights_[kStretch * kQuads * kQuadBytes];
    alignas(64) int32_t sums_[kAtOnce * kParts][2][kGroup][kLanes];
};

template <Format F>
void integer_tiles(const PanelTile& a) {
    const PanelPrefetcher<F> prefetcher(a.panel, a.next_panel, a.blocks);
    constexpr PanelLayout layout = panel_layout(F);
    const size_t groups = ceil_div(a.tokens, kGroup);
    std::memset(a.outputs, 0, groups * kGroup * sizeof *a.outputs);
    {
        IntegerTiles tiles(traits(F).sub_block);
        const uint8_t* block = a.panel;
        for (size_t b = 0; b < a.blocks; b += kStretch, block += kStretch / layout.pieces * layout.block_bytes()) {
            PanelStretch<F> stretch(block, std::min(kStretch, a.blocks - b));
            for (size_t i = 0; i < std::min(kStretch, a.blocks - b); ++i) {
                prefetcher.advance(b + i);
                stretch.store_piece(i);
            }
            const uint8_t* ahead = a.next_panel ? prefetcher.ahead(std::min(b + kStretch, a.blocks), 0) : nullptr;
            for (size_t t = 0; t < a.tokens; t += kGroup) {
                const bool last = t + kGroup >= a.tokens;
                if (ahead) prefetch_share(ahead, kStretch * PanelPrefetcher<F>::kBytes, t / kGroup, 1, groups);
                if (!last || b + kStretch < a.blocks)
                    prefetch(a.x.quantised.bytes + kBlockInputs * (last ? a.x.at(a.first, b + kStretch)
                                                                        : a.x.at(a.first + t + kGroup, b)),
                             kGroup * kStretch * kBlockInputs);
                const TokenGroup group(a.x, a.first + t, std::min(kGroup, a.tokens - t), b);
                stretch.add(tiles, group.get(), a.outputs + t);
            }
        }
    }
    add_residuals<F>(a);
}

}  // namespace decodestep::DECODESTEP_BUILD
