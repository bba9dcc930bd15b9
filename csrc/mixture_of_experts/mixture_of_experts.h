// Feed-forward blocks (experts) of which every token uses a few.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/isa.h"
#include "linear/linear_panels.h"

namespace decodestep {

// The activation of a block's gate. The numbers are the places in GATES of weights/feed_forward.py.
enum class Gate : int { silu = 0, gelu = 1, clamped_silu = 2 };

// `count` blocks y = swiglu(x gate, x up) down of one shape, side by side in three weights: block e has the outputs
// from e * width on of gate and up, and those from e * inputs on of down. Both sizes are multiples of 32, so a panel
// belongs to one block. The gate is optional: without it y = max(x up, 0)^2 down. In place of swiglu there may be
// the same with the tanh form of GELU, or clamped_swiglu of elementwise/silu.h. Biases are added to the outputs of
// these weights and have as many values; or null.
struct FeedForwardPanels {
    LinearPanelWeight gate, up, down;
    size_t count = 1;
    Gate activation = Gate::silu;
    const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;

    constexpr size_t inputs() const { return up.in; }
    constexpr size_t width() const { return down.in; }
    constexpr size_t wide_panels() const { return width() / kPanelOutputs; }     // of gate and of up, in one block
    constexpr size_t narrow_panels() const { return inputs() / kPanelOutputs; }  // of down
    constexpr bool is_given() const { return up.data != nullptr; }
    constexpr bool has_gate() const { return gate.data != nullptr; }
    constexpr const LinearPanelWeight& first() const { return has_gate() ? gate : up; }  // that is read
};

// y[t] = the sum of weights[t, j] * (block experts[t, j] of `routed`)(x[t]), in ascending order of experts, plus the
// single block of `shared` of x[t]
//
// Shapes: x and y [tokens, inputs]; experts [tokens, used] in [0, routed.count); weights [tokens, used].
// Products are those of linear_panels.h; x is quantised once for all experts. NaN: affects only its own token.
// Determinism: a token's bits depend neither on the other tokens nor on the thread count.
struct MixtureOfExperts {
    const float* x;
    ptrdiff_t x_stride;
    size_t tokens, used;
    const int64_t* experts;
    const float* weights;
    FeedForwardPanels routed, shared;  // shared is optional
    float* y;
    int threads;
};

DECODESTEP_KERNEL(vectors, mixture_of_experts, MixtureOfExperts)

}  // namespace decodestep
