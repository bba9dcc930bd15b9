// One token times several panels at once, block by block: a core that reads one stream of memory leaves a part of what
// it could read unused. The order of each output's sums is that of the other tiles.
#pragma once

#include "linear/byte_tile.h"
#include "linear/float_tile.h"
#include "linear/panel_product.h"

namespace decodestep::DECODESTEP_ISA {

// Pieces of a kilobyte and more prefetch as many bytes as they read, a line or two with each quad: so many prefetches
// at once would wait for each other, and none would be under way while the rest of the piece is multiplied.
constexpr size_t kSpreadBytes = 1024, kSpreadDistance = 768;

template <Format F>
struct SpreadQuads {
    PanelQuads<F> quads;
    const uint8_t* ahead;

    DECODESTEP_INLINE u8x64 quad(size_t j, size_t v) const {
        constexpr size_t lines = (PanelPrefetcher<F>::kBytes + 63) / 64, calls = 2 * kQuads;
        const size_t call = 2 * j + v;
        for (size_t line = call * lines / calls; line < (call + 1) * lines / calls; ++line) prefetch(ahead + 64 * line);
        return quads.quad(j, v);
    }
};

// The quads of a piece that the product reads now, being its block number `block`; prefetches what is read later.
template <Format F>
DECODESTEP_INLINE auto streamed_quads(const PanelPrefetcher<F>& prefetcher, size_t block, const uint8_t* piece) {
    if constexpr (PanelPrefetcher<F>::kBytes > kSpreadBytes) {
        return SpreadQuads<F>{{piece}, prefetcher.ahead(block, kSpreadDistance)};
    } else {
        prefetcher.advance(block);
        return PanelQuads<F>{piece};
    }
}

template <Format F>
void stream_bytes(const PanelStreams& a) {
    constexpr PanelLayout layout = panel_layout(F);
    const Activations& x = a.x;
    FloatSums<1, 2> y[kStreams], sums[kStreams];
    for (size_t s = 0; s < kStreams; ++s) clear<1, 2>(y[s]);
    size_t offset = 0;
    for (size_t b = 0; b < a.blocks; b += layout.pieces, offset += layout.block_bytes()) {
        const size_t at = x.at(a.row, b);
        if constexpr (layout.pieces > 1)
            for (size_t s = 0; s < kStreams; ++s) clear<1, 2>(sums[s]);
        for (size_t i = 0; i < layout.pieces; ++i)
            for (size_t s = 0; s < kStreams; ++s) {
                const PanelPrefetcher<F> prefetcher(a.panels[s], a.next[s], a.blocks);
                const uint8_t* piece = a.panels[s] + offset + i * layout.piece_bytes();
                const auto quads = streamed_quads<F>(prefetcher, b + i, piece);
                if constexpr (layout.pieces == 1 && has_minima(F)) add_minima<F, 1, 2>(0, piece, x, at, y[s]);
                add_piece<F, 1, 2>(quads, 0, piece, x.quantised, at + i, 0, layout.pieces > 1 ? sums[s] : y[s]);
            }
        if constexpr (layout.pieces > 1)
            for (size_t s = 0; s < kStreams; ++s) finish_block<F, 1, 2>(0, a.panels[s] + offset, x, at, sums[s], y[s]);
    }
    for (size_t s = 0; s < kStreams; ++s) {
        store_outputs<1, 2>(y[s], 0, a.outputs + s);
        add_residuals<F, 1>(a.panels[s], x, a.row, a.outputs + s);
    }
}

template <Format F>
void stream_floats(const PanelStreams& a) {
    const float* values = a.x.values + a.row * a.x.in;
    f32x16 y[kStreams][1][2];
    for (size_t s = 0; s < kStreams; ++s) y[s][0][0] = y[s][0][1] = broadcast(0.0f);
    for (size_t b = 0; b < a.blocks; ++b)
        for (size_t s = 0; s < kStreams; ++s) {
            const PanelPrefetcher<F> prefetcher(a.panels[s], a.next[s], a.blocks);
            add_float_block<F, 1>(a.panels[s] + b * panel_block_bytes(F), values + b * kBlockInputs, 0, y[s],
                                  prefetcher.ahead(b, kSpreadDistance));
        }
    for (size_t s = 0; s < kStreams; ++s) {
        store(a.outputs[s], y[s][0][0]);
        store(a.outputs[s] + kLanes, y[s][0][1]);
    }
}

}  // namespace decodestep::DECODESTEP_ISA
