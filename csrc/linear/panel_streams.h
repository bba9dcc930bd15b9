// A few tokens times several panels at once, block by block: one stream of memory does not use all of a core's memory
// bandwidth, even less so with products between the reads. The order of each output's sums is that of the other tiles.
#pragma once

#include "linear/byte_tile.h"
#include "linear/panel_product.h"

namespace decodestep::DECODESTEP_BUILD {

// Pieces of more than kSpreadBytes spread their prefetches over their quads, a line or two with each: all at once would
// wait for each other, and none would be in flight while the rest of the piece is multiplied.
constexpr size_t kSpreadBytes = 1024, kSpreadDistance = 768;

template <Format F>
struct SpreadQuads {
    PanelQuads<F> quads;
    const uint8_t* ahead;

    DECODESTEP_INLINE u8x64 quad(size_t j, size_t v) const {
        constexpr size_t lines = ceil_div(PanelPrefetcher<F>::kBytes, kCacheLine), calls = 2 * kQuads;
        const size_t call = 2 * j + v;
        for (size_t line = call * lines / calls; line < (call + 1) * lines / calls; ++line)
            prefetch(ahead + kCacheLine * line);
        return quads.quad(j, v);
    }
};

// The quads of the piece at `block`; prefetches ahead of it.
template <Format F>
DECODESTEP_INLINE auto streamed_quads(const PanelPrefetcher<F>& prefetcher, size_t block, const uint8_t* piece) {
    if constexpr (PanelPrefetcher<F>::kBytes > kSpreadBytes) {
        return SpreadQuads<F>{{piece}, prefetcher.ahead(block, kSpreadDistance)};
    } else {
        prefetcher.advance(block);
        return PanelQuads<F>{piece};
    }
}

// The float sums of G groups of T tokens with each panel.
template <int T, size_t G>
using StreamSums = FloatSums<T, 2>[G][kStreams];

template <int T, size_t G>
DECODESTEP_INLINE void clear(StreamSums<T, G>& sums, size_t groups) {
    for (size_t g = 0; g < groups; ++g)
        for (size_t s = 0; s < kStreams; ++s) clear<T, 2>(sums[g][s]);
}

// Multiplies the tokens in groups of T <= tokens, at most G. The last group is moved back to be a whole one; the tokens
// that it shares with the group before get the same sums twice. A single group is compiled on its own: for others to
// come, GCC would store the quads that it unpacks.
template <Format F, int T, size_t G>
void stream_bytes(const PanelStreams& a) {
    constexpr PanelLayout layout = panel_layout(F);
    const Activations& x = a.x;
    const size_t groups = G == 1 ? 1 : ceil_div(a.tokens, T);
    const auto first_of = [&](size_t g) DECODESTEP_INLINE_LAMBDA { return std::min(g * T, a.tokens - T); };
    StreamSums<T, G> y, sums;
    clear<T, G>(y, groups);
    size_t offset = 0;
    for (size_t b = 0; b < a.blocks; b += layout.pieces, offset += layout.block_bytes()) {
        const auto at = [&](size_t g) DECODESTEP_INLINE_LAMBDA { return x.at(a.first + first_of(g), b); };
        if constexpr (layout.pieces > 1) clear<T, G>(sums, groups);
        for (size_t i = 0; i < layout.pieces; ++i)
            for (size_t s = 0; s < kStreams; ++s) {
                const PanelPrefetcher<F> prefetcher(a.panels[s], a.next[s], a.blocks);
                const uint8_t* piece = a.panels[s] + offset + i * layout.piece_bytes();
                const auto add = [&](size_t g, const auto& quads) DECODESTEP_INLINE_LAMBDA {
                    if constexpr (layout.pieces == 1 && traits(F).minima)
                        add_minima<F, T, 2>(0, piece, x, at(g), y[g][s]);
                    add_piece<F, T, 2>(quads, 0, piece, x.quantised, at(g) + i, kStretch,
                                       layout.pieces > 1 ? sums[g][s] : y[g][s]);
                };
                add(0, streamed_quads<F>(prefetcher, b + i, piece));
                for (size_t g = 1; g < groups; ++g) add(g, PanelQuads<F>{piece});
            }
        if constexpr (layout.pieces > 1)
            for (size_t g = 0; g < groups; ++g)
                for (size_t s = 0; s < kStreams; ++s)
                    finish_block<F, T, 2>(0, a.panels[s] + offset, x, at(g), sums[g][s], y[g][s]);
    }
    for (size_t s = 0; s < kStreams; ++s) {
        const auto outputs = a.outputs + s * a.tokens;
        for (size_t g = 0; g < groups; ++g) store_outputs<T, 2>(y[g][s], 0, outputs + first_of(g));
        add_residuals<F>({F, a.blocks, a.panels[s], nullptr, x, a.first, a.tokens, outputs});
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
