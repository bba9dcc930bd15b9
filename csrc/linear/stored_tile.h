// Products of many tokens with a panel whose weights are turned into bytes once for all of them.
#pragma once

#include "linear/byte_tile.h"
#include "linear/panel_prefetcher.h"
#include "linear/panel_product.h"

namespace decodestep::DECODESTEP_ISA {

// Where registers hold the sums of few tokens, a panel is turned into quads of bytes first, a stretch of inputs at a
// time, which all tokens read, so many of them and sixteen outputs at once: fewer where the quads are bytes, whose
// products take more registers.
template <Format F>
constexpr size_t kStoredTokens = is_bytes(F)           ? 5
                                 : run_quads<F>() == 2 ? 4
                                                       : 6;

// T tokens, from `first` on, times `pieces` pieces from block b on and sixteen outputs.
template <Format F, int T>
void stored_tile(size_t b, size_t pieces, const uint8_t* block, const uint8_t* stored, size_t v, const Activations& x,
                 size_t first, float (*outputs)[kPanelOutputs]) {
    constexpr PanelLayout layout = panel_layout(F);
    const size_t at = x.at(first, b);
    FloatSums<T, 1> y;
    load_outputs<T, 1>(outputs, v, y);
    for (size_t i = 0; i < pieces; i += layout.pieces, block += layout.block_bytes()) {
        const auto quads = [&](size_t piece) DECODESTEP_INLINE_LAMBDA {
            return StoredQuads<F>{stored + (i + piece) * StoredQuads<F>::kBytes};
        };
        add_block<F, T, 1>(quads, v, block, x, at + i, y);
    }
    store_outputs<T, 1>(y, v, outputs);
}

template <Format F, int T = 1>
void stored_tile_of(size_t tokens, size_t b, size_t pieces, const uint8_t* block, const uint8_t* stored,
                    const Activations& x, size_t first, float (*outputs)[kPanelOutputs]) {
    if constexpr (T < kStoredTokens<F>) {
        if (tokens > T) return stored_tile_of<F, T + 1>(tokens, b, pieces, block, stored, x, first, outputs);
    }
    for (size_t v = 0; v < kPanelOutputs / kLanes; ++v)
        stored_tile<F, T>(b, pieces, block, stored, v, x, first, outputs);
}

template <Format F>
void stored_tiles(size_t blocks, const uint8_t* panel, const uint8_t* next_panel, const Activations& x, size_t first,
                  size_t tokens, float (*outputs)[kPanelOutputs]) {
    constexpr PanelLayout layout = panel_layout(F);
    alignas(64) uint8_t stored[kStretch * StoredQuads<F>::kBytes];
    const PanelPrefetcher<F> prefetcher(panel, next_panel, blocks);
    std::memset(outputs, 0, tokens * sizeof *outputs);
    const uint8_t* block = panel;
    for (size_t b = 0; b < blocks; b += kStretch, block += kStretch / layout.pieces * layout.block_bytes()) {
        const size_t pieces = std::min(kStretch, blocks - b);
        for (size_t i = 0; i < pieces; ++i) {
            prefetcher.advance(b + i);
            const uint8_t* piece =
                block + i / layout.pieces * layout.block_bytes() + i % layout.pieces * layout.piece_bytes();
            StoredQuads<F>::store(PanelQuads<F>{piece}, stored + i * StoredQuads<F>::kBytes);
        }
        each_tile<kStoredTokens<F>>(tokens, [&](size_t t, size_t count) {
            stored_tile_of<F>(count, b, pieces, block, stored, x, first + t, outputs + t);
        });
    }
    each_tile<2>(tokens, [&](size_t t, size_t count) {
        count == 2 ? add_residuals<F, 2>(panel, x, first + t, outputs + t)
                   : add_residuals<F, 1>(panel, x, first + t, outputs + t);
    });
}

}  // namespace decodestep::DECODESTEP_ISA
