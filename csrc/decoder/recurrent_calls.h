// The recurrences of a decoder's step, as calls of their operators on the step's buffers.
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

// The calls of one layer.
class RecurrentCalls {
  public:
    RecurrentCalls(const DecoderForward& step, const RecurrentMixer& w, const RecurrentBuffers& buffers)
        : step_(step), w_(w), buffers_(buffers) {}

    CausalConv1d convolution() const {
        const bool alone = w_.kind == Mixer::convolution;
        return {.x = buffers_.inputs + w_.convolved_at(),
                .x_stride = static_cast<ptrdiff_t>(w_.input_width()),
                .weight = w_.weight,
                .weight_stride = static_cast<ptrdiff_t>(w_.channels()),
                .bias = w_.conv_bias,
                .silu = !alone,
                .tokens = step_.tokens,
                .channels = w_.channels(),
                .taps = w_.taps,
                .state = step_.states + w_.inputs_at,
                .state_stride = state_stride(),
                .input_stride = static_cast<ptrdiff_t>(w_.channels()),
                .rows = step_.state_rows,
                .y = alone ? buffers_.results : buffers_.convolved,
                .y_stride = static_cast<ptrdiff_t>(w_.channels()),
                .threads = step_.threads};
    }

    GatedDeltaRule delta() const {
        return {.query = convolved(0, w_.rows),
                .key = convolved(w_.key_width(), w_.rows),
                .value = convolved(2 * w_.key_width(), w_.columns),
                .decay = of_heads(w_.step_at()),
                .beta = of_heads(w_.beta_at()),
                .key_heads = w_.key_heads,
                .decays_rows = false,
                .tiled = w_.tiled,
                .l2_norm = true,
                .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(w_.rows))),
                .state = state(),
                .rows = step_.state_rows,
                .out = {buffers_.results, w_.heads, w_.columns},
                .threads = step_.threads};
    }

    SelectiveStateUpdate mamba() const {
        return {.x = convolved(0, w_.columns),
                .dt = of_heads(w_.step_at()),
                .b = convolved(w_.width(), w_.rows),
                .c = convolved(w_.width() + w_.key_width(), w_.rows),
                .groups = w_.key_heads,
                .a = w_.decay,
                .d = w_.skip,
                .dt_bias = w_.step_bias,
                .state = state(),
                .rows = step_.state_rows,
                .y = {buffers_.results, w_.heads, w_.columns},
                .threads = step_.threads};
    }

  private:
    ptrdiff_t state_stride() const { return static_cast<ptrdiff_t>(step_.decoder->state_size); }

    // Heads of `width` values from `first` on of what has been convolved.
    TokenHeads convolved(size_t first, size_t width) const {
        return {buffers_.convolved + first, static_cast<ptrdiff_t>(w_.channels()), static_cast<ptrdiff_t>(width)};
    }
    // A value for each head, from `first` on of an input row.
    TokenHeads of_heads(size_t first) const {
        return {buffers_.inputs + first, static_cast<ptrdiff_t>(w_.input_width()), 1};
    }
    StateHeads state() const {
        return {.data = step_.states + w_.state_at,
                .stride = state_stride(),
                .head_stride = static_cast<ptrdiff_t>(w_.rows * w_.columns),
                .row_stride = static_cast<ptrdiff_t>(w_.columns),
                .heads = w_.heads,
                .rows = w_.rows,
                .columns = w_.columns};
    }

    const DecoderForward& step_;
    const RecurrentMixer& w_;
    const RecurrentBuffers& buffers_;
};

}  // namespace decodestep::DECODESTEP_BUILD
