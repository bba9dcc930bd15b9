// The product of activations with one panel of a weight, for kernels that use the outputs at once.
#pragma once

#include <type_traits>

#include "core/pieces.h"
#include "core/stage_share.h"
#include "linear/activations.h"
#include "linear/linear_panels.h"
#include "linear/panel_tile.h"

namespace decodestep::DECODESTEP_BUILD {

// These constants follow from the family's alone: the build that calls a kernel of panel_tile.h allocates its outputs
// by them, and the build that runs it, which may be another, writes as many.

// The largest number of tokens that are multiplied by a panel at a time, and share its unpacking.
constexpr size_t kTileTokens = kManyRegisters ? 128 : kStoresBytes ? 96 : 2;

// Tokens whose sums of 32 outputs stay in registers.
constexpr int kRegisterTokens = kManyRegisters ? 6 : 2;
static_assert(kStoresBytes || kTileTokens <= kRegisterTokens);

// The largest number of tokens that are multiplied by several panels at once, which reads memory in several streams.
// With more tokens the products take the time, not the memory.
constexpr size_t kStreamedTokens = kManyRegisters ? 30 : 16;

// Whether this number of tokens is multiplied by several panels at once.
constexpr bool streams(Format format, size_t tokens) {
    return kStreams > 1 && tokens > 0 && tokens <= (quantises_activations(format) ? kStreamedTokens : 1);
}

// Prefetches, for writing, the memory of a tile's outputs: place(t) for tokens [first, first + count).
template <class Place>
DECODESTEP_INLINE void prefetch_outputs(size_t first, size_t count, Place&& place) {
    for (size_t t = first; t < first + count; ++t) prefetch_for_write(place(t), kPanelOutputs * sizeof(*place(t)));
}

// Rows [first, first + count) of activations.
struct RowRange {
    size_t first, count;

    RowRange(size_t rows) : RowRange(0, rows) {}
    RowRange(size_t first, size_t count) : first(first), count(count) {}
};

// The panels of kStreams streams, and those that are read after them.
struct PanelGroup {
    const uint8_t *panels[kStreams], *next[kStreams];
};

// The panel that is read next, for prefetching; with a stride, the first of several, `stride` bytes apart.
struct NextPanels {
    const uint8_t* first;
    size_t stride = 0;

    NextPanels(const uint8_t* first, size_t stride = 0) : first(first), stride(stride) {}
};

// A tile of tokens is multiplied by a group of panels that fits in the L2 cache before the next tile is: each panel is
// read from memory once, and a tile's activations once per group.
constexpr size_t kPanelGroupBytes = 512 * 1024;

// Calls body(p, next panel, first row, number of rows) for every panel of a range and every tile of the rows.
// panel_bytes: the bytes read per panel. panel_at(p): the address of panel p. next: what is read after the range. The
// next panel is null if an earlier tile has prefetched it.
template <class PanelAt, class Body>
DECODESTEP_INLINE void each_panel_tile(Range range, size_t panel_bytes, const PanelAt& panel_at, const uint8_t* next,
                                       RowRange rows, Body&& body) {
    const size_t group = std::max<size_t>(1, kPanelGroupBytes / std::max<size_t>(1, panel_bytes));
    for (size_t first = range.first; first < range.end; first += group) {
        const size_t end = std::min(range.end, first + group);
        each_piece<kTileTokens>(rows.count, [&](size_t from, size_t count) {
            for (size_t p = first; p < end; ++p) {
                const uint8_t* after = p + 1 < range.end ? panel_at(p + 1) : next;
                body(p, from == 0 ? after : nullptr, from, count);
            }
        });
    }
}

struct NoPlace {};

// Multiplies panels [range.first, range.end) of w by rows of x and calls sink(p, i, outputs) for each panel p and row i
// of them; outputs: kPanelOutputs floats, which the sink may change. place(p, i), if given: the address to which the
// sink writes them, for prefetching. next: what is read after the last panel.
template <class Sink, class Place = NoPlace>
DECODESTEP_INLINE void multiply_panels(const LinearPanelWeight& w, Range range, NextPanels next, const Activations& x,
                                       RowRange rows, Sink&& sink, Place place = {}) {
    size_t p = range.first;
    if constexpr (kStreams > 1) {
        for (; streams(w.format, rows.count) && p + kStreams <= range.end; p += kStreams) {
            alignas(64) float outputs[kStreams * kStreamedTokens][kPanelOutputs];
            PanelGroup group;
            for (size_t s = 0; s < kStreams; ++s) {
                group.panels[s] = w.panel(p + s);
                group.next[s] = p + kStreams + s < range.end ? w.panel(p + kStreams + s) : next.first + s * next.stride;
            }
            decodestep::panel_streams(
                {w.format, w.blocks(), group.panels, group.next, x, rows.first, rows.count, outputs});
            for (size_t s = 0; s < kStreams; ++s)
                for (size_t i = 0; i < rows.count; ++i) sink(p + s, i, outputs[s * rows.count + i]);
        }
    }
    each_panel_tile(
        {p, range.end}, w.panel_bytes(), [&](size_t i) { return w.panel(i); }, next.first, rows,
        [&](size_t panel, const uint8_t* next_panel, size_t from, size_t count) {
            alignas(64) float outputs[kTileTokens][kPanelOutputs];
            if constexpr (!std::is_same_v<Place, NoPlace>)
                prefetch_outputs(from, count, [&](size_t i) { return place(panel, i); });
            decodestep::panel_tile(
                {w.format, w.blocks(), w.panel(panel), next_panel, x, rows.first + from, count, outputs});
            for (size_t i = 0; i < count; ++i) sink(panel, from + i, outputs[i]);
        });
}

}  // namespace decodestep::DECODESTEP_BUILD
