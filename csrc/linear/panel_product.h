// The product of activations with one panel of a weight, inside kernels that know what to do with the outputs.
#pragma once

#include <type_traits>

#include "linear/activations.h"
#include "linear/linear_panels.h"

namespace decodestep::DECODESTEP_ISA {

// Of 32 registers, six tokens' twelve sums of integers and twelve of floats leave eight.
constexpr size_t kTileTokens = kVectorRegisters >= 32 ? 6 : 2;

// Tokens [first, first + tokens) of x, up to kTileTokens, times a panel, to outputs[token][output].
// next: where the caller will read on after this panel. What lies a few kilobytes ahead is asked for while the panel is
// read, across its end; null where that has been done.
void panel_tile(Format format, size_t blocks, const uint8_t* panel, const uint8_t* next, const Activations& x,
                size_t first, size_t tokens, float (*outputs)[kPanelOutputs]);

// tile(first, count) for tokens in runs of at most kTileTokens, as even as can be.
template <class Tile>
DECODESTEP_INLINE void each_tile(size_t tokens, Tile&& tile) {
    const size_t tiles = (tokens + kTileTokens - 1) / kTileTokens;
    for (size_t i = 0, t = 0; i < tiles; ++i) {
        const size_t left = tiles - i, count = (tokens - t + left - 1) / left;
        tile(t, count);
        t += count;
    }
}

// Asks for what a tile's outputs will be written to: place(t) for tokens [first, first + count).
template <class Place>
DECODESTEP_INLINE void ask_for_outputs(size_t first, size_t count, Place&& place) {
    for (size_t t = first; t < first + count; ++t) prefetch_for_write(place(t), kPanelOutputs * sizeof(*place(t)));
}

struct Anywhere {};

// sink(t, outputs) for each of the tokens. place(t), if it is given, is what the sink writes of a token.
template <class Sink, class Place = Anywhere>
DECODESTEP_INLINE void times_panel(const Panels& w, size_t p, const uint8_t* next, const Activations& x, size_t tokens,
                                   Sink&& sink, Place place = {}) {
    alignas(64) float outputs[kTileTokens][kPanelOutputs];
    each_tile(tokens, [&](size_t first, size_t count) {
        if constexpr (!std::is_same_v<Place, Anywhere>) ask_for_outputs(first, count, place);
        panel_tile(w.format, w.blocks(), w.panel(p), first == 0 ? next : nullptr, x, first, count, outputs);
        for (size_t i = 0; i < count; ++i) sink(first + i, outputs[i]);
    });
}

}  // namespace decodestep::DECODESTEP_ISA
