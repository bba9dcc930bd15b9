// Products of many tokens with a panel whose weights are unpacked to bytes once for all of them.
#pragma once

#include "linear/byte_tile.h"
#include "linear/panel_prefetcher.h"
#include "linear/panel_product.h"
#include "linear/residuals.h"

namespace decodestep::DECODESTEP_BUILD {

// A panel is unpacked to bytes, a stretch of inputs at a time, for all tokens. A tile is kStoredTokens tokens times
// kStoredVectors vectors of sixteen outputs: enough independent sums to hide the latency of an addition, and no more
// than registers hold. A piece of several spans also needs registers for the products of its spans; on targets without
// dot products of bytes, so do weights that are bytes. AVX2 has no registers left for products, but six tokens still
// take 2 to 8 % less time than four (measured with Q5_0, Q6_K and MXFP4).
constexpr int kStoredVectors = kManyRegisters ? 2 : 1;
template <Format F>
constexpr int kStoredTokens = [] {
    constexpr bool has_spans = !is_bytes(F) && span_quads<F>() < kQuads;
    if (kManyRegisters) return has_spans ? 4 : 6;
    if (kWideSums) return 6;
    return is_bytes(F) ? 5 : 6;
}();

// y += a block of the panel, whose pieces are stored at `stored`, times the tokens' blocks from block `at` on.
template <Format F, int T, int V>
DECODESTEP_INLINE void add_block(const uint8_t* stored, size_t first_v, const uint8_t* block, const Activations& x,
                                 size_t at, FloatSums<T, V>& y) {
    constexpr PanelLayout layout = panel_layout(F);
    const TokenBlocks blocks{x.quantised, at, kStretch};
    if constexpr (layout.pieces == 1) {
        if constexpr (traits(F).minima) add_minima<F, T, V>(first_v, block, x, at, y);
        add_piece<F, T, V>(StoredQuads<F>{stored}, first_v, block, blocks, y);
    } else {
        Starts<F, T> starts;
        starts.compute_stretch(blocks);
        FloatSums<T, V> sums;
        clear<T, V>(sums);
        for (size_t i = 0; i < layout.pieces; ++i)
            add_piece<F, T, V>(StoredQuads<F>{stored + i * StoredQuads<F>::kBytes}, first_v,
                               block + i * layout.piece_bytes(), starts.with(blocks).after(i), sums);
        finish_block<F, T, V>(first_v, block, x, at, sums, y);
    }
}

// T tokens, from `first` on, times `pieces` pieces from block b on and the outputs from 16v on.
template <Format F, int T>
void stored_tile(size_t b, size_t pieces, const uint8_t* block, const uint8_t* stored, size_t v, const Activations& x,
                 size_t first, float (*outputs)[kPanelOutputs]) {
    constexpr PanelLayout layout = panel_layout(F);
    const size_t at = x.at(first, b);
    FloatSums<T, kStoredVectors> y;
    load_outputs<T, kStoredVectors>(outputs, v, y);
    for (size_t i = 0; i < pieces; i += layout.pieces, block += layout.block_bytes())
        add_block<F, T, kStoredVectors>(stored + i * StoredQuads<F>::kBytes, v, block, x, at + i, y);
    store_outputs<T, kStoredVectors>(y, v, outputs);
}

// More than kUnstoredTokens tokens.
template <Format F>
void stored_tiles(const PanelTile& a) {
    constexpr PanelLayout layout = panel_layout(F);
    alignas(64) uint8_t stored[kStretch * StoredQuads<F>::kBytes];
    const PanelPrefetcher<F> prefetcher(a.panel, a.next_panel, a.blocks);
    std::memset(a.outputs, 0, a.tokens * sizeof *a.outputs);
    const uint8_t* block = a.panel;
    for (size_t b = 0; b < a.blocks; b += kStretch, block += kStretch / layout.pieces * layout.block_bytes()) {
        const size_t pieces = std::min(kStretch, a.blocks - b);
        for (size_t i = 0; i < pieces; ++i) {
            prefetcher.advance(b + i);
            const uint8_t* piece =
                block + i / layout.pieces * layout.block_bytes() + i % layout.pieces * layout.piece_bytes();
            StoredQuads<F>::store(PanelQuads<F>{piece}, stored + i * StoredQuads<F>::kBytes);
        }
        const uint8_t* ahead = a.next_panel ? prefetcher.ahead(b + pieces, 0) : nullptr;
        each_constant_piece<kStoredTokens<F>, kUnstoredTokens + 1>(a.tokens, [&]<int T>(size_t t) {
            if (ahead) prefetch_share(ahead, kStretch * PanelPrefetcher<F>::kBytes, t, T, a.tokens);
            for (size_t v = 0; v < kPanelOutputs / kLanes; v += kStoredVectors)
                stored_tile<F, T>(b, pieces, block, stored, v, a.x, a.first + t, a.outputs + t);
        });
    }
    add_residuals<F>(a);
}

}  // namespace decodestep::DECODESTEP_BUILD
