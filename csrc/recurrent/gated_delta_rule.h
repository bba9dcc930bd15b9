// Linear attention with a matrix for a state: the rules linear, gated, delta and gated delta, token by token.
#pragma once

#include "core/isa.h"
#include "recurrent/state_rows.h"

namespace decodestep {

// [tokens, heads, width], of which the last axis has no gaps.
struct TokenHeads {
    const float* data;
    ptrdiff_t token_stride, head_stride;

    const float* at(size_t token, size_t head) const { return data + token * token_stride + head * head_stride; }
};

struct GatedDeltaRule {
    TokenHeads query, key;  // [tokens, key_heads, key_width]
    TokenHeads value;       // [tokens, heads, value_width]
    TokenHeads decay;       // logarithms, [tokens, heads, 1 or key_width]; null for none
    TokenHeads beta;        // [tokens, heads, 1]; null for none
    size_t heads, key_heads, key_width, value_width;
    bool decays_rows;  // whether a head has a decay for each row of its state, and not one
    bool tiled;        // head h reads key head h mod key_heads, and not h / (heads / key_heads)
    bool l2_norm;
    float scale;
    float* state;  // [states, heads, key_width, value_width]
    ptrdiff_t state_stride, state_head_stride, state_row_stride;
    StateRows rows;
    float* out;  // [tokens, heads, value_width]
    ptrdiff_t out_token_stride;
    int threads;
};

DECODESTEP_KERNEL(vectors, gated_delta_rule, GatedDeltaRule)

}  // namespace decodestep
