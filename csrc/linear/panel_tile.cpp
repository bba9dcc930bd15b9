#include "linear/panel_tile.h"

#include "linear/byte_tile.h"
#include "linear/dense_tile.h"
#include "linear/panel_product.h"
#include "linear/panel_streams.h"
#include "linear/stored_tile.h"
#include "linear/with_format.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

// Tokens whose sums of 32 outputs stay in registers.
constexpr int kRegisterTokens = kManyRegisters ? 6 : 2;
// Whether several tokens are multiplied by several panels at once. Of AVX-512 without dot products, which few CPUs
// have, these instances would be half of all code.
constexpr bool kStreamsTokens = kWideSums || !kManyRegisters;

// The T tokens of a tile as bytes times a panel that is read as it lies in memory.
template <Format F, int T>
void byte_tile(const PanelTile& a) {
    constexpr PanelLayout layout = panel_layout(F);
    const PanelPrefetcher<F> prefetcher(a.panel, a.next_panel, a.blocks);
    const uint8_t* block = a.panel;
    FloatSums<T, 2> y;
    clear<T, 2>(y);
    for (size_t b = 0; b < a.blocks; b += layout.pieces, block += layout.block_bytes()) {
        const auto quads = [&](size_t i) DECODESTEP_INLINE_LAMBDA {
            prefetcher.advance(b + i);
            return PanelQuads<F>{block + i * layout.piece_bytes()};
        };
        add_block<F, T, 2>(quads, 0, block, a.x, a.x.at(a.first, b), y);
    }
    store_outputs<T, 2>(y, 0, a.outputs);
    add_residuals<F>(a);
}

template <Format F>
void tiles_of(const PanelTile& a) {
    if constexpr (!quantises_activations(F)) {
        const DenseRows<float> x{a.x.values, a.x.tokens};
        dense_tiles<FloatDot<F>>({a.panel, a.next_panel, a.blocks, x, a.first, a.tokens, a.outputs});
    } else {
        if constexpr (kStoresBytes)
            if (a.tokens > size_t{kRegisterTokens}) return stored_tiles<F>(a);
        each_constant_piece<kRegisterTokens>(a.tokens, [&]<int T>(size_t t) { byte_tile<F, T>(a.part(t, T)); });
    }
}

}  // namespace

void panel_tile(const PanelTile& a) {
    with_format(a.format, [&]<Format F>() { tiles_of<F>(a); });
}

void panel_streams(const PanelStreams& a) {
    with_format(a.format, [&]<Format F>() {
        if constexpr (kStreams > 1) {
            if constexpr (quantises_activations(F) && !kStreamsTokens) {
                if (a.tokens == 1) return stream_bytes<F, 1, 1>(a);
                for (size_t s = 0; s < kStreams; ++s)
                    tiles_of<F>(
                        {F, a.blocks, a.panels[s], a.next[s], a.x, a.first, a.tokens, a.outputs + s * a.tokens});
            } else if constexpr (quantises_activations(F)) {
                const size_t groups = ceil_div(a.tokens, kRegisterTokens);
                with_constant<kRegisterTokens>(ceil_div(a.tokens, groups), [&]<int T>() {
                    if constexpr (2 * T > kRegisterTokens)  // others are a single group
                        if (groups > 1) return stream_bytes<F, T, ceil_div(kStreamedTokens, T)>(a);
                    stream_bytes<F, T, 1>(a);
                });
            } else {
                dense_streams<FloatDot<F>>(a.panels, a.next, a.blocks, {a.x.values, a.x.tokens}, a.first, a.outputs);
            }
        }
    });
}

}  // namespace decodestep::DECODESTEP_BUILD
