// The recurrence of Mamba2: a gated state, whose decay and input depend on a step that follows from the token.
#pragma once

#include "core/isa.h"
#include "recurrent/state_heads.h"
#include "recurrent/state_rows.h"

namespace decodestep {

struct SelectiveStateUpdate {
    TokenHeads x;     // [tokens, heads, state.columns]
    TokenHeads dt;    // [tokens, heads, 1]
    TokenHeads b, c;  // [tokens, groups, state.rows]; neighbouring heads share a group
    size_t groups;
    const float *a, *d, *dt_bias;  // [heads]; the last two may be null
    StateHeads state;
    StateRows rows;
    HeadResults y;
    int threads;
};

DECODESTEP_KERNEL(vectors, selective_state_update, SelectiveStateUpdate)

}  // namespace decodestep
