// A layer's recurrence as calls of its operators, of the tokens of a step, or of kept ones whose states are replayed.
#pragma once

#include <cmath>

#include "decoder/decoder_forward.h"
#include "recurrent/recurrent_tasks.h"

namespace decodestep::DECODESTEP_BUILD {

// The buffers through which a recurrence's stages pass their results.
struct RecurrentBuffers {
    float* inputs = nullptr;     // [tokens, input_width of the layer]
    float* convolved = nullptr;  // [tokens, channels], unless the convolution is alone
    float* results = nullptr;    // [tokens, width of the layer]
};

// What the calls of one layer read and write.
struct RecurrentTokens {
    size_t tokens;
    // Of the first token, `pitch` floats before those of the next: what is convolved; betas and steps of heads.
    const float *inputs, *betas, *steps;
    size_t pitch;
    float* convolved;  // [tokens, channels]
    float* results;    // [tokens, width], or null: they are not wanted
    float* states;     // [slots, state_size]
    size_t state_size;
    StateRows rows;
    int threads;
};

class RecurrentCalls {
  public:
    RecurrentCalls(const RecurrentMixer& w, const RecurrentTokens& tokens) : w_(w), tokens_(tokens) {}

    CausalConv1d convolution() const {
        return {.x = tokens_.inputs,
                .x_stride = static_cast<ptrdiff_t>(tokens_.pitch),
                .weight = w_.weight,
                .weight_stride = static_cast<ptrdiff_t>(w_.channels()),
                .bias = w_.conv_bias,
                .silu = w_.kind != Mixer::convolution,
                .tokens = tokens_.tokens,
                .channels = w_.channels(),
                .taps = w_.taps,
                .state = tokens_.states + w_.inputs_at,
                .state_stride = state_stride(),
                .input_stride = static_cast<ptrdiff_t>(w_.channels()),
                .rows = tokens_.rows,
                .y = tokens_.convolved,
                .y_stride = static_cast<ptrdiff_t>(w_.channels()),
                .threads = tokens_.threads};
    }

    GatedDeltaRule delta() const {
        return {.query = convolved(0, w_.rows),
                .key = convolved(w_.key_width(), w_.rows),
                .value = convolved(2 * w_.key_width(), w_.columns),
                .decay = of_heads(tokens_.steps),
                .beta = of_heads(tokens_.betas),
                .key_heads = w_.key_heads,
                .decays_rows = false,
                .tiled = w_.tiled,
                .l2_norm = true,
                .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(w_.rows))),
                .state = state(),
                .rows = tokens_.rows,
                .out = {tokens_.results, w_.heads, w_.columns},
                .threads = tokens_.threads};
    }

    SelectiveStateUpdate mamba() const {
        return {.x = convolved(0, w_.columns),
                .dt = of_heads(tokens_.steps),
                .b = convolved(w_.width(), w_.rows),
                .c = convolved(w_.width() + w_.key_width(), w_.rows),
                .groups = w_.key_heads,
                .a = w_.decay,
                .d = w_.skip,
                .dt_bias = w_.step_bias,
                .state = state(),
                .rows = tokens_.rows,
                .y = {tokens_.results, w_.heads, w_.columns},
                .threads = tokens_.threads};
    }

  private:
    ptrdiff_t state_stride() const { return static_cast<ptrdiff_t>(tokens_.state_size); }

    // Heads of `width` values from `first` on of what has been convolved.
    TokenHeads convolved(size_t first, size_t width) const {
        return {tokens_.convolved + first, static_cast<ptrdiff_t>(w_.channels()), static_cast<ptrdiff_t>(width)};
    }
    TokenHeads of_heads(const float* values) const { return {values, static_cast<ptrdiff_t>(tokens_.pitch), 1}; }
    StateHeads state() const {
        return {.data = tokens_.states + w_.state_at,
                .stride = state_stride(),
                .head_stride = static_cast<ptrdiff_t>(w_.rows * w_.columns),
                .row_stride = static_cast<ptrdiff_t>(w_.columns),
                .heads = w_.heads,
                .rows = w_.rows,
                .columns = w_.columns};
    }

    const RecurrentMixer& w_;
    const RecurrentTokens tokens_;
};

}  // namespace decodestep::DECODESTEP_BUILD
