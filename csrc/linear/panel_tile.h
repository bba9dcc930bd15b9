// The product of tokens with one panel of a weight, and of a few tokens with several: the part of `linear_panels` that
// profits from dot products of bytes, so only this part is built for every instruction set that has them.
#pragma once

#include "core/isa.h"
#include "linear/activation_memory.h"
#include "linear/linear_panels.h"

namespace decodestep {

// outputs[i][n] = activations of token first + i times output n of the panel, for i in [0, tokens), tokens at most
// kTileTokens.
// next_panel: the panel that the caller reads after this one, for prefetching past the end of this one. Null if an
// earlier tile of tokens has already read this panel and prefetched the next.
struct PanelTile {
    Format format;
    size_t blocks;  // of 32 inputs
    const uint8_t *panel, *next_panel;
    const Activations& x;
    size_t first, tokens;
    float (*outputs)[kPanelOutputs];

    // `count` of its tokens, from the one numbered `at` on; the first part prefetches the next panel.
    PanelTile part(size_t at, size_t count) const {
        return {format, blocks, panel, at == 0 ? next_panel : nullptr, x, first + at, count, outputs + at};
    }
};

DECODESTEP_KERNEL(tiles, panel_tile, PanelTile)

// outputs[s * tokens + i] = activations of token first + i times panels[s], for kStreams panels of one format and size
// and as many tokens as `streams` allows; next[s]: what is read after panels[s].
struct PanelStreams {
    Format format;
    size_t blocks;
    const uint8_t *const *panels, *const *next;
    const Activations& x;
    size_t first, tokens;
    float (*outputs)[kPanelOutputs];
};

DECODESTEP_KERNEL(bytes, panel_streams, PanelStreams)

// The same for formats whose products are of floats; the two above pass these on to them.
DECODESTEP_KERNEL(vectors, dense_panel_tile, PanelTile)
DECODESTEP_KERNEL(vectors, dense_panel_streams, PanelStreams)

}  // namespace decodestep
