// Rows of a weight out of its panels, the inverse of packing: an embedding that is the logits weight too is kept once.
#pragma once

#include "core/isa.h"
#include "linear/linear_panels.h"

namespace decodestep {

// rows[i] = output ids[i] of the weight, in the bytes that were packed.
struct UnpackLinearPanels {
    LinearPanelWeight w;
    const int64_t* ids;  // [count], each in [0, w.out)
    size_t count;
    uint8_t* rows;  // [count, row_bytes(w.format, w.in)]
    int threads;
};

DECODESTEP_KERNEL(vectors, unpack_linear_panels, UnpackLinearPanels)

// values[i] = output ids[i] of the weight, widened to float32. Bits: those of GatherRows.
struct GatherPanels {
    LinearPanelWeight w;
    const int64_t* ids;  // [count], each in [0, w.out)
    size_t count;
    float* values;  // [count, w.in]
    int threads;
};

DECODESTEP_KERNEL(vectors, gather_panels, GatherPanels)

}  // namespace decodestep
