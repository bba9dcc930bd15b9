// Linear attention with a matrix for a state: the rules linear, gated, delta and gated delta, token by token.
#pragma once

#include "core/isa.h"
#include "recurrent/state_heads.h"
#include "recurrent/state_rows.h"

namespace decodestep {

struct GatedDeltaRule {
    TokenHeads query, key;  // [tokens, key_heads, state.rows]
    TokenHeads value;       // [tokens, heads, state.columns]
    TokenHeads decay;       // logarithms, [tokens, heads, 1 or state.rows]; null for none
    TokenHeads beta;        // [tokens, heads, 1]; null for none
    size_t key_heads;
    bool decays_rows;  // whether a head has a decay for each row of its state, and not one
    bool tiled;        // head h reads key head h mod key_heads, and not h / (heads / key_heads)
    bool l2_norm;
    float scale;
    StateHeads state;
    StateRows rows;
    HeadResults out;
    int threads;
};

DECODESTEP_KERNEL(vectors, gated_delta_rule, GatedDeltaRule)

}  // namespace decodestep
