// The product of tokens with one panel of a weight, and of one token with several: the part of `linear_panels` that
// gains by products of bytes, so that only this has a build for every instruction set that has them.
#pragma once

#include "core/isa.h"
#include "linear/activation_memory.h"
#include "linear/linear_panels.h"

namespace decodestep {

// outputs[i][n] = activations of token first + i times output n of the panel, for i in [0, tokens), tokens at most
// kTileTokens.
// next_panel: the panel that the caller reads after this one, so that prefetching runs on past the end of this one.
// Null
//     if an earlier tile of tokens has read this panel, and prefetched what follows, already.
struct PanelTile {
    Format format;
    size_t blocks;  // of 32 inputs
    const uint8_t *panel, *next_panel;
    const Activations& x;
    size_t first, tokens;
    float (*outputs)[kPanelOutputs];
};

DECODESTEP_TILE_KERNEL(panel_tile, PanelTile)

// outputs[s] = one row of x times panels[s], for kStreams panels of one format and size; next[s]: what is read after
// it. Only where kStreams is more than one.
struct PanelStreams {
    Format format;
    size_t blocks;
    const uint8_t *const *panels, *const *next;
    const Activations& x;
    size_t row;
    float (*outputs)[kPanelOutputs];
};

DECODESTEP_BYTE_KERNEL(panel_streams, PanelStreams)

}  // namespace decodestep
