// Products of tokens with two dense panels that follow each other in memory. The sums of a few tokens with one panel
// are too few to hide the latency of an addition.
#pragma once

#include "linear/dense_tile.h"

namespace decodestep::DECODESTEP_BUILD {

// The largest number of tokens whose sums with two panels stay in registers.
template <class Dot>
constexpr int kPairTokens = !kManyRegisters     ? 1
                            : kWideWeights<Dot> ? 4
                                                : 6;

// The tokens of a DenseTile, T of them, times its panel and the next one, whose outputs follow those of the first.
template <class Dot, int T>
void dense_pair(const DenseTile<Dot>& a) {
    constexpr size_t stride = DenseRows<typename Dot::Value>::kStretchValues;
    const uint8_t* w[2] = {a.panel, a.panel + a.blocks * kDenseBlockBytes<Dot>};
    DenseSums<Dot, T, 2> y[2];
    for (int p = 0; p < 2; ++p) {
        if (a.adds)
            load_tile<Dot, T, 2>(a.outputs + p * T, 0, y[p]);
        else
            clear<Dot, T, 2>(y[p]);
    }
    for (size_t b = 0; b < a.blocks; ++b) {
        const typename Dot::Value* x = a.x.at(a.first, a.first_block + b);
        const auto add_step = [&]<int step>() DECODESTEP_INLINE_LAMBDA {
            decltype(Dot::template token<step>(x)) tokens[T];
#pragma GCC unroll 6
            for (int t = 0; t < T; ++t) tokens[t] = Dot::template token<step>(x + t * stride);
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) {
                const auto weights = Dot::template weights<step>(w[i / 2], i % 2);
#pragma GCC unroll 6
                for (int t = 0; t < T; ++t) y[i / 2][t][i % 2] = Dot::add(y[i / 2][t][i % 2], tokens[t], weights);
            }
        };
        for (size_t g = 0; g < kBlockInputs / Dot::kInputs; ++g, x += Dot::kInputs) {
            if (a.next_panel)
                for (const uint8_t* panel : w) prefetch(panel + kDenseAhead, Dot::kBytes);
            add_step.template operator()<0>();
            if constexpr (Dot::kSteps == 2) add_step.template operator()<1>();
            for (const uint8_t*& panel : w) panel += Dot::kBytes;
        }
    }
    for (int p = 0; p < 2; ++p) store_tile<Dot, T, 2>(y[p], 0, a.outputs + p * T);
}

// One or two panels, the tile's and the one that follows it; a panel's outputs follow those of the one before.
template <class Dot>
void dense_panels(DenseTile<Dot> a, size_t panels) {
    if (panels == 2 && a.tokens <= size_t{kPairTokens<Dot>})
        return with_constant<kPairTokens<Dot>>(a.tokens, [&]<int T>() { dense_pair<Dot, T>(a); });
    const uint8_t* next = a.next_panel;
    for (size_t p = 0; p < panels; ++p) {
        const uint8_t* following = a.panel + a.blocks * kDenseBlockBytes<Dot>;
        a.next_panel = next && p + 1 < panels ? following : next;
        dense_tiles(a);
        a.panel = following;
        a.outputs += a.tokens;
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
