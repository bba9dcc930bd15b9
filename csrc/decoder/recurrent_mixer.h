// What a layer may have in place of attention: a recurrence, whose state stands for a sequence's past.
#pragma once

#include <cstddef>

#include "core/compiler.h"
#include "linear/linear_panels.h"

namespace decodestep {

enum class Mixer { attention, delta, mamba, convolution, none };

// The gated delta rule, the recurrence of Mamba2, or a short convolution alone. `inputs` are products of the hidden
// rows, whose outputs lie side by side in a row:
//
//     delta        query, key, value (convolved); gate [heads * columns]; beta [heads]; step [heads]
//     mamba        gate [heads * columns]; x, b, c (convolved); step [heads]
//     convolution  factor; gate; x (convolved, after its product with the factor), each as wide as the hidden rows
struct RecurrentMixer {
    Mixer kind;
    size_t heads, columns;        // of the results and of the states; of a convolution alone one head of all channels
    size_t key_heads, rows;       // of queries and keys, or of b and c; 0 of a convolution alone
    bool tiled;                   // head h reads key head h mod key_heads, and not h / (heads / key_heads)
    LinearPanelWeight inputs[4];  // the last ones may not be given
    LinearPanelWeight output;     // heads * columns to hidden
    const float *input_bias, *output_bias;  // of the products' outputs, or null
    size_t taps;
    const float* weight;     // [taps, channels], the last for the newest input
    const float* conv_bias;  // [channels], or null
    // [heads], null of a convolution alone: the factor of a step's softplus in the logarithm of a decay, what is added
    // to a step, and Mamba's factor of x in the results.
    const float *decay, *step_bias, *skip;
    // Of every head of a delta rule, [columns], before the gate; of Mamba's groups, [heads * columns], after it.
    const float* norm;
    size_t state_at, inputs_at;  // where a sequence's row of states has the layer's matrices and last inputs
    size_t kept_at;              // where a token's row of kept inputs has the layer's

    size_t width() const { return heads * columns; }
    size_t key_width() const { return key_heads * rows; }
    DECODESTEP_INLINE size_t channels() const {
        return kind == Mixer::convolution ? width() : 2 * key_width() + width();
    }

    // Where the parts of an input row begin.
    DECODESTEP_INLINE size_t convolved_at() const {
        return kind == Mixer::delta ? 0 : kind == Mixer::mamba ? width() : 2 * width();
    }
    DECODESTEP_INLINE size_t gate_at() const {
        return kind == Mixer::delta ? channels() : kind == Mixer::mamba ? 0 : width();
    }
    DECODESTEP_INLINE size_t beta_at() const { return channels() + width(); }
    DECODESTEP_INLINE size_t step_at() const { return channels() + width() + (kind == Mixer::delta ? heads : 0); }
    DECODESTEP_INLINE size_t input_width() const {
        return kind == Mixer::convolution ? 3 * width() : step_at() + heads;
    }

    // Of an input row a replay of the state reads what is convolved, and then what comes after the gate: betas and
    // steps, which are kept side by side.
    DECODESTEP_INLINE size_t head_inputs() const {
        return kind == Mixer::delta ? 2 * heads : kind == Mixer::mamba ? heads : 0;
    }
    DECODESTEP_INLINE size_t kept_width() const { return channels() + head_inputs(); }

    size_t state_floats() const { return heads * rows * columns; }
    size_t input_floats() const { return (taps - 1) * channels(); }
};

}  // namespace decodestep
