// A few tokens times one panel or several at once, block by block: one stream of memory does not use all of a core's
// memory bandwidth, even less so with products between the reads. The order of each output's sums is that of the other
// tiles.
#pragma once

#include "linear/byte_tile.h"
#include "linear/panel_prefetcher.h"
#include "linear/panel_product.h"
#include "linear/residuals.h"

namespace decodestep::DECODESTEP_BUILD {

// The quads of a piece, with each of which a line or two of what is read later are prefetched: all at once would wait
// for each other, and none would be in flight while the rest of the piece is multiplied.
template <Format F>
struct StreamedQuads {
    PanelQuads<F> quads;
    const uint8_t* ahead;

    DECODESTEP_INLINE StreamedQuads(const PanelPrefetcher<F>& prefetcher, size_t block, const uint8_t* piece)
        : quads{piece}, ahead(prefetcher.ahead(block, kPrefetchBytes)) {}

    DECODESTEP_INLINE u8x64 quad(size_t j, size_t v) const {
        constexpr size_t lines = ceil_div(PanelPrefetcher<F>::kBytes, kCacheLine), calls = 2 * kQuads;
        const size_t call = 2 * j + v;
        for (size_t line = call * lines / calls; line < (call + 1) * lines / calls; ++line)
            prefetch(ahead + kCacheLine * line);
        return quads.quad(j, v);
    }
};

// Whether several tokens are multiplied by several panels at once. Of AVX-512 without dot products, which few CPUs
// have, these instances would be half of all code.
constexpr bool kStreamsTokens = kStreams > 1 && (kWideSums || !kManyRegisters);

// The largest number of tokens that form one group; of more, groups have at most kRegisterTokens. That the float sums
// of a larger group are in memory costs less than to unpack the panels twice, and the instances for a single group are
// small.
constexpr int kLargestGroup = kStreamsTokens && kManyRegisters ? 8 : kUnstoredTokens;

// In how many groups tokens are multiplied: as few as possible, of about equal sizes.
constexpr size_t groups_of(size_t tokens) {
    return tokens <= size_t{kLargestGroup} ? 1 : ceil_div(tokens, kRegisterTokens);
}

// The largest number of groups of T tokens.
template <int T>
constexpr size_t kTokenGroups = [] {
    size_t most = 1;
    for (size_t tokens = 1; kStreamsTokens && tokens <= kStreamedTokens; ++tokens) {
        const size_t groups = groups_of(tokens);
        if (ceil_div(tokens, groups) == T) most = std::max(most, groups);
    }
    return most;
}();

// Whether groups share quads that are unpacked to memory. For two groups that does not pay; with few registers the
// compiler does it by itself.
template <Format F, int T>
constexpr bool kSharesQuads = kManyRegisters && kTokenGroups<T> > 2 && !kReadsInPlace<F>;

// Unpacks the piece. Not inlined, because it does not depend on the number of tokens.
template <Format F>
[[gnu::noinline]] void store_streamed(const PanelPrefetcher<F>& prefetcher, size_t block, const uint8_t* piece,
                                      uint8_t* to) {
    prefetcher.advance(block);
    StoredQuads<F>::store(PanelQuads<F>{piece}, to);
}

// Of the sums of T tokens, those of the last N.
template <int N, int T>
DECODESTEP_INLINE FloatSums<N, 2>& last_sums(FloatSums<T, 2>& sums) {
    return *reinterpret_cast<FloatSums<N, 2>*>(sums + (T - N));
}

// Multiplies the tokens, in groups of T <= tokens, by `streams` panels. The last group is moved back to be a whole one;
// the tokens that it shares with the group before get the same sums twice, except in groups of two, of which the last
// is then multiplied by its second token alone. A single group is compiled on its own: for others to come, GCC would
// store the quads that it unpacks.
template <Format F, int T>
void stream_bytes(const PanelStreams& a, size_t streams) {
    constexpr PanelLayout layout = panel_layout(F);
    constexpr size_t G = kTokenGroups<T>;
    const Activations& x = a.x;
    const size_t groups = G == 1 ? 1 : ceil_div(a.tokens, T);
    const auto first_of = [&](size_t g) DECODESTEP_INLINE_LAMBDA { return std::min(g * T, a.tokens - T); };
    FloatSums<T, 2> y[G][kStreams], block_sums[G][kStreams];
    Starts<F, T> starts[G];
    alignas(64) uint8_t stored[kSharesQuads<F, T> ? StoredQuads<F>::kBytes : 1];
    const auto each_sums = [&](auto&& body) DECODESTEP_INLINE_LAMBDA {
        for (size_t g = 0; g < groups; ++g)
            for (size_t s = 0; s < streams; ++s) body(g, s);
    };
    each_sums([&](size_t g, size_t s) DECODESTEP_INLINE_LAMBDA { clear<T, 2>(y[g][s]); });
    size_t offset = 0;
    for (size_t b = 0; b < a.blocks; b += layout.pieces, offset += layout.block_bytes()) {
        const auto at = [&](size_t g) DECODESTEP_INLINE_LAMBDA { return x.at(a.first + first_of(g), b); };
        for (size_t g = 0; g < groups; ++g) starts[g].compute_stretch({x.quantised, at(g), kStretch});
        if constexpr (layout.pieces > 1)
            each_sums([&](size_t g, size_t s) DECODESTEP_INLINE_LAMBDA { clear<T, 2>(block_sums[g][s]); });
        for (size_t i = 0; i < layout.pieces; ++i)
            for (size_t s = 0; s < streams; ++s) {
                const PanelPrefetcher<F> prefetcher(a.panels[s], a.next[s], a.blocks);
                const uint8_t* piece = a.panels[s] + offset + i * layout.piece_bytes();
                // Of the last N tokens of a group.
                const auto add_last = [&]<int N>(size_t g, const auto& quads) DECODESTEP_INLINE_LAMBDA {
                    size_t first = at(g) + (T - N) * kStretch;
                    forget(first);
                    const TokenBlocks blocks{x.quantised, first, kStretch};
                    auto& sums = last_sums<N, T>((layout.pieces > 1 ? block_sums : y)[g][s]);
                    if constexpr (layout.pieces == 1 && traits(F).minima)
                        add_minima<F, N, 2>(0, piece, x, blocks.at, sums);
                    add_piece<F, N, 2>(quads, 0, piece, starts[g].with(blocks, T - N).after(i), sums);
                };
                const auto add = [&](size_t g, const auto& quads)
                                     DECODESTEP_INLINE_LAMBDA { add_last.template operator()<T>(g, quads); };
                if (groups == 1) {
                    add(0, StreamedQuads<F>(prefetcher, b + i, piece));
                } else if constexpr (kSharesQuads<F, T>) {
                    store_streamed<F>(prefetcher, b + i, piece, stored);
                    for (size_t g = 0; g < groups; ++g) add(g, StoredQuads<F>{stored});
                } else {
                    add(0, StreamedQuads<F>(prefetcher, b + i, piece));
                    for (size_t g = 1; g < groups; ++g) {
                        if (T == 2 && (g + 1) * T > a.tokens)
                            add_last.template operator()<1>(g, PanelQuads<F>{piece});
                        else
                            add(g, PanelQuads<F>{piece});
                    }
                }
            }
        if constexpr (layout.pieces > 1)
            each_sums([&](size_t g, size_t s) DECODESTEP_INLINE_LAMBDA {
                finish_block<F, T, 2>(0, a.panels[s] + offset, x, at(g), block_sums[g][s], y[g][s]);
            });
    }
    // The last group first: the group before has the sums of a token that both have.
    each_sums([&](size_t following, size_t s) DECODESTEP_INLINE_LAMBDA {
        const size_t g = groups - 1 - following;
        store_outputs<T, 2>(y[g][s], 0, a.outputs + s * a.tokens + first_of(g));
    });
    for (size_t s = 0; s < streams; ++s)
        add_residuals<F>({F, a.blocks, a.panels[s], nullptr, x, a.first, a.tokens, a.outputs + s * a.tokens});
}

template <Format F>
void stream_bytes(const PanelStreams& a, size_t streams) {
    with_constant<kLargestGroup>(ceil_div(a.tokens, groups_of(a.tokens)),
                                 [&]<int T>() { stream_bytes<F, T>(a, streams); });
}

}  // namespace decodestep::DECODESTEP_BUILD
