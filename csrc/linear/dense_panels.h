// Products of tokens with two dense panels. The sums of a few tokens with one panel are too few to hide the latency of
// an addition.
#pragma once

#include <cstdint>

#include "linear/dense_tile.h"

namespace decodestep::DECODESTEP_BUILD {

// The largest number of tokens whose sums with two panels stay in registers.
template <class Dot>
constexpr int kPairTokens = !kManyRegisters     ? 1
                            : kWideWeights<Dot> ? 4
                                                : 6;

// The largest number that is multiplied by both panels, a piece of at most kPairTokens at a time. More are multiplied
// faster by one panel, with longer slabs or converted weights.
template <class Dot>
constexpr size_t kPairedTokens = (kManyRegisters ? 4 : 1) * kPairTokens<Dot>;

// The bytes of each panel that all pieces are multiplied by before the next ones: of both, half of a first-level cache
// of 32 KiB.
constexpr size_t kPairSlabBytes = 8192;

// T tokens of a DenseTile, from the one numbered t on, times `blocks` blocks, from block b on, of its panel and of the
// one `panel_stride` bytes further. ahead: how far ahead each panel is prefetched, or 0.
template <class Dot, int T>
void dense_pair(const DenseTile<Dot>& a, size_t panel_stride, size_t t, size_t b, size_t blocks,
                const size_t (&ahead)[2]) {
    constexpr size_t stride = DenseRows<typename Dot::Value>::kStretchValues;
    const uint8_t *first = a.panel + b * kDenseBlockBytes<Dot>, *w[2] = {first, first + panel_stride};
    DenseSums<Dot, T, 2> y[2];
#pragma GCC unroll 2
    for (int p = 0; p < 2; ++p) {
        if (a.adds || b > 0)
            load_tile<Dot, T, 2>(a.outputs + p * a.tokens + t, 0, y[p]);
        else
            clear<Dot, T, 2>(y[p]);
    }
    for (const size_t end = b + blocks; b < end; ++b) {
        const typename Dot::Value* x = a.x.at(a.first + t, a.first_block + b);
        const auto add_step = [&]<int step>() DECODESTEP_INLINE_LAMBDA {
            decltype(Dot::template token<step>(x)) tokens[T];
#pragma GCC unroll 6
            for (int i = 0; i < T; ++i) tokens[i] = Dot::template token<step>(x + i * stride);
#pragma GCC unroll 4
            for (int v = 0; v < 4; ++v) {
                const auto weights = Dot::template weights<step>(w[v / 2], v % 2);
#pragma GCC unroll 6
                for (int i = 0; i < T; ++i) y[v / 2][i][v % 2] = Dot::add(y[v / 2][i][v % 2], tokens[i], weights);
            }
        };
        for (size_t g = 0; g < kBlockInputs / Dot::kInputs; ++g, x += Dot::kInputs) {
#pragma GCC unroll 2
            for (int p = 0; p < 2; ++p)
                if (ahead[p]) prefetch(w[p] + ahead[p], Dot::kBytes);
            add_step.template operator()<0>();
            if constexpr (Dot::kSteps == 2) add_step.template operator()<1>();
#pragma GCC unroll 2
            for (const uint8_t*& panel : w) panel += Dot::kBytes;
        }
    }
#pragma GCC unroll 2
    for (int p = 0; p < 2; ++p) store_tile<Dot, T, 2>(y[p], 0, a.outputs + p * a.tokens + t);
}

// All tokens. Several pieces of them: slab by slab, so that the weights are in the first-level cache for all but the
// first piece.
template <class Dot>
void dense_pairs(const DenseTile<Dot>& a, size_t panel_stride) {
    const size_t near = a.next_panel ? kDenseAhead : 0, far = a.next_panel ? kPairSlabBytes : 0;
    if (a.tokens <= size_t{kPairTokens<Dot>})
        return with_constant<kPairTokens<Dot>>(
            a.tokens, [&]<int T>() { dense_pair<Dot, T>(a, panel_stride, 0, 0, a.blocks, {near, near}); });
    constexpr size_t slab = kPairSlabBytes / kDenseBlockBytes<Dot>;  // blocks
    for (size_t b = 0; b < std::max<size_t>(a.blocks, 1); b += slab) {
        size_t piece = 0;  // the first two prefetch the next slab, each that of one panel
        each_constant_piece<kPairTokens<Dot>>(a.tokens, [&]<int T>(size_t t) {
            dense_pair<Dot, T>(a, panel_stride, t, b, std::min(slab, a.blocks - b),
                               {piece == 0 ? far : 0, piece == 1 ? far : 0});
            ++piece;
        });
    }
}

// One or two panels, the tile's and the one panel_stride bytes further, whose outputs follow those of the first.
template <class Dot>
void dense_panels(DenseTile<Dot> a, size_t panels, size_t panel_stride) {
    if (panels == 2 && a.tokens <= kPairedTokens<Dot>) return dense_pairs(a, panel_stride);
    const uint8_t* next = a.next_panel;
    for (size_t p = 0; p < panels; ++p) {
        const uint8_t* following = a.panel + panel_stride;
        a.next_panel = next && p + 1 < panels ? following : next;
        dense_tiles(a);
        a.panel = following;
        a.outputs += a.tokens;
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
