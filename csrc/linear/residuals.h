// The residuals of a tile's tokens: each is multiplied by the piece of a panel that its block belongs to.
#pragma once

#include "linear/byte_tile.h"
#include "linear/panel_tile.h"

namespace decodestep::DECODESTEP_BUILD {

// Adds the residuals of tokens [first, first + T), which belong to the same piece.
template <Format F, int T>
void add_residual(const uint8_t* panel, const Activations& x, size_t first, float (*outputs)[kPanelOutputs]) {
    constexpr PanelLayout layout = panel_layout(F);
    constexpr int V = kVectorRegisters < 8 ? 1 : 2;  // vectors at a time
    const auto number = static_cast<size_t>(x.residual_block[first]);
    const uint8_t* block = panel + number / layout.pieces * layout.block_bytes();
    const uint8_t* piece = block + number % layout.pieces * layout.piece_bytes();
    Starts<F, T> starts;
    const TokenBlocks residuals{x.residual, first, 1};
    starts.compute_piece(residuals);
    for (size_t v = 0; v < kPanelOutputs / kLanes; v += V) {
        FloatSums<T, V> y;
        load_outputs<T, V>(outputs, v, y);
        if constexpr (layout.pieces == 1) {
            add_piece<F, T, V>(PanelQuads<F>{piece}, v, piece, starts.with(residuals), y);
        } else {
            FloatSums<T, V> sums;
            clear<T, V>(sums);
            add_piece<F, T, V>(PanelQuads<F>{piece}, v, piece, starts.with(residuals), sums);
            add_scaled<F, T, V>(sums, block, 0, v, y);
            if constexpr (traits(F).minima && sub_blocks(F) > 1) {  // other minima are multiplied by sums with it
                clear<T, V>(sums);
                subtract_minima<F, T, V>(v, piece, residuals, sums);
                add_scaled<F, T, V>(sums, block, 64, v, y);
            }
        }
        store_outputs<T, V>(y, v, outputs);
    }
}

// Adds the residuals of the tokens from `at` on: of T tokens if they share a block, otherwise of fewer. Returns how
// many.
template <Format F, int T>
size_t add_shared_residuals(const PanelTile& a, size_t at) {
    const int32_t* block = a.x.residual_block + a.first + at;
    if constexpr (T > 1)
        if (at + T > a.tokens || !std::all_of(block + 1, block + T, [&](int32_t b) { return b == *block; }))
            return add_shared_residuals<F, T / 2>(a, at);
    add_residual<F, T>(a.panel, a.x, a.first + at, a.outputs + at);
    return T;
}

// Adds the residuals of a tile's tokens. Most tokens have their outliers in the same block, so adjacent tokens that
// share one read it together, as many as have their sums in registers.
template <Format F>
void add_residuals(const PanelTile& a) {
    if (a.x.blocks() == 0) return;
    constexpr int most = kManyRegisters ? 4 : kVectorRegisters / 4;
    for (size_t t = 0; t < a.tokens;) t += add_shared_residuals<F, most>(a, t);
}

}  // namespace decodestep::DECODESTEP_BUILD
