// The product of activations with one panel of a weight, for kernels that use the outputs at once.
#pragma once

#include <type_traits>

#include "linear/activations.h"
#include "linear/linear_panels.h"

namespace decodestep::DECODESTEP_ISA {

// Tokens that are multiplied by a panel at a time. Of 32 registers, six tokens' twelve sums of integers and twelve of
// floats leave eight. Where there are fewer, so many tokens share the bytes that a panel's nibbles are turned into.
constexpr size_t kTileTokens = kVectorRegisters >= 32 ? 6 : kStoresBytes ? 96 : 2;

// outputs[i][n] = activations of token first + i times output n of panel `panel`, for i in [0, tokens), tokens at most
// kTileTokens.
// next_panel: the panel that the caller reads after this one, so that prefetching runs on past the end of this one.
// Null
//     if an earlier tile of tokens has read this panel, and prefetched what follows, already.
void panel_tile(Format format, size_t blocks, const uint8_t* panel, const uint8_t* next_panel, const Activations& x,
                size_t first, size_t tokens, float (*outputs)[kPanelOutputs]);

// Calls tile(first, count) for tiles of at most Most tokens, of as equal sizes as possible.
template <size_t Most = kTileTokens, class Tile>
DECODESTEP_INLINE void each_tile(size_t tokens, Tile&& tile) {
    const size_t tiles = (tokens + Most - 1) / Most;
    for (size_t i = 0, t = 0; i < tiles; ++i) {
        const size_t left = tiles - i, count = (tokens - t + left - 1) / left;
        tile(t, count);
        t += count;
    }
}

// Prefetches, for writing, the memory of a tile's outputs: place(t) for tokens [first, first + count).
template <class Place>
DECODESTEP_INLINE void prefetch_outputs(size_t first, size_t count, Place&& place) {
    for (size_t t = first; t < first + count; ++t) prefetch_for_write(place(t), kPanelOutputs * sizeof(*place(t)));
}

struct NoPlace {};

// Multiplies all tokens by panel p of w and calls sink(t, outputs) for each token, outputs being kPanelOutputs floats
// that the sink may change. place(t), if given, is the address that the sink writes the outputs of token t to: it is
// prefetched. next_panel: as in `panel_tile`.
template <class Sink, class Place = NoPlace>
DECODESTEP_INLINE void multiply_panel(const LinearPanelWeight& w, size_t p, const uint8_t* next_panel,
                                      const Activations& x, size_t tokens, Sink&& sink, Place place = {}) {
    alignas(64) float outputs[kTileTokens][kPanelOutputs];
    each_tile(tokens, [&](size_t first, size_t count) {
        if constexpr (!std::is_same_v<Place, NoPlace>) prefetch_outputs(first, count, place);
        panel_tile(w.format, w.blocks(), w.panel(p), first == 0 ? next_panel : nullptr, x, first, count, outputs);
        for (size_t i = 0; i < count; ++i) sink(first + i, outputs[i]);
    });
}

// Multiplies rows [first, first + count) of x by panel p of w and calls sink(i, outputs) for row first + i.
template <class Sink>
DECODESTEP_INLINE void multiply_rows(const LinearPanelWeight& w, size_t p, const uint8_t* next_panel,
                                     const Activations& x, size_t first, size_t count, Sink&& sink) {
    alignas(64) float outputs[kTileTokens][kPanelOutputs];
    each_tile(count, [&](size_t from, size_t rows) {
        panel_tile(w.format, w.blocks(), w.panel(p), from == 0 ? next_panel : nullptr, x, first + from, rows, outputs);
        for (size_t i = 0; i < rows; ++i) sink(from + i, outputs[i]);
    });
}

// Panels [first, end) of a weight.
struct PanelRange {
    size_t first, end;
};

// So many panels, and those that are read after them.
struct PanelGroup {
    const uint8_t *panels[kStreams], *next[kStreams];
};

// outputs[s] = the first token times panel s of the group, all panels being of one format and size. Only where kStreams
// is more than one.
void stream_panels(Format format, size_t blocks, const PanelGroup& group, const Activations& x,
                   float (*outputs)[kPanelOutputs]);

struct NoPanelPlace {};

// multiply_panel for all panels of a range, the fastest way: sink(p, t, outputs), place(p, t). next_panel: the one that
// is read after the last.
template <class Sink, class Place = NoPanelPlace>
DECODESTEP_INLINE void multiply_panels(const LinearPanelWeight& w, PanelRange range, const uint8_t* next_panel,
                                       const Activations& x, size_t tokens, Sink&& sink, Place place = {}) {
    size_t p = range.first;
    if constexpr (kStreams > 1) {
        for (; tokens == 1 && p + kStreams <= range.end; p += kStreams) {
            alignas(64) float outputs[kStreams][kPanelOutputs];
            PanelGroup group;
            for (size_t s = 0; s < kStreams; ++s) {
                group.panels[s] = w.panel(p + s);
                group.next[s] = p + kStreams + s < range.end ? w.panel(p + kStreams + s) : next_panel;
            }
            stream_panels(w.format, w.blocks(), group, x, outputs);
            for (size_t s = 0; s < kStreams; ++s) sink(p + s, size_t{0}, outputs[s]);
        }
    }
    for (; p < range.end; ++p) {
        const uint8_t* next = p + 1 < range.end ? w.panel(p + 1) : next_panel;
        const auto sink_one = [&](size_t t, auto* outputs) { sink(p, t, outputs); };
        if constexpr (std::is_same_v<Place, NoPanelPlace>)
            multiply_panel(w, p, next, x, tokens, sink_one);
        else
            multiply_panel(w, p, next, x, tokens, sink_one, [&](size_t t) { return place(p, t); });
    }
}

}  // namespace decodestep::DECODESTEP_ISA
