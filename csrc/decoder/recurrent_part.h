// Recurrences in a decoder's step.
#pragma once

#include "decoder/recurrent_calls.h"
#include "decoder/stage_member.h"
#include "elementwise/silu.h"
#include "recurrent/softplus.h"

namespace decodestep::DECODESTEP_BUILD {

class RecurrentPart : public StageMember {
  public:
    explicit RecurrentPart(const StageMember& member)
        : StageMember(member),
          w_(stage_.layer->recurrent),
          buffers_(plan_.recurrent),
          calls_(w_, tokens()),
          pitch_(w_.input_width()) {}

    void project(const Activations& x) const {
        size_t first = 0;
        for (size_t number = 0; number < std::size(w_.inputs) && w_.inputs[number].data; ++number) {
            const LinearPanelWeight& w = w_.inputs[number];
            const auto [own, next] = panels_of(number);
            store_products(w, own, next, x, step_.tokens, {buffers_.inputs + first, pitch_}, w.out, 1.0f,
                           w_.input_bias ? w_.input_bias + first : nullptr);
            first += w.out;
        }
    }

    void convolve() const {
        const CausalConv1d call = calls_.convolution();
        const ChannelBlocks blocks(call, kLeastChannels);
        share_.each(blocks.count(), [&](size_t number) { convolve(call, blocks[number]); });
        if (w_.head_inputs() == 0) return;
        share_.each(step_.tokens, [&](size_t t) {
            if (w_.kind == Mixer::delta) find_decays(t);
            keep(t, w_.channels() + w_.width(), w_.channels(), w_.head_inputs());
        });
    }

    void update_delta() const { update(calls_.delta()); }
    void update_mamba() const { update(calls_.mamba()); }

    // Calls body with what makes rows of the results, gated and normalised.
    template <class Body>
    void with_results(Body&& body) const {
        if (w_.kind == Mixer::convolution) return body(copied(buffers_.results, w_.width()));
        const ThreadScratch scratch(w_.width());
        body([&, row = scratch.data()](const Activations& out, size_t t) {
            w_.kind == Mixer::delta ? gate_normed_heads(t, row) : norm_gated_groups(t, row);
            store_row(out, t, row, w_.width());
        });
    }

  private:
    template <class Call>
    void update(const Call& call) const {
        share_.each(task_count(call), [&](size_t task) { run_task(call, task); });
    }

    RecurrentTokens tokens() const {
        const float* const rows = buffers_.inputs;
        return {.tokens = step_.tokens,
                .inputs = rows + w_.convolved_at(),
                .betas = rows + w_.beta_at(),
                .steps = rows + w_.step_at(),
                .pitch = w_.input_width(),
                .convolved = w_.kind == Mixer::convolution ? buffers_.results : buffers_.convolved,
                .results = buffers_.results,
                .states = step_.states,
                .state_size = decoder_.state_size,
                .rows = step_.state_rows,
                .threads = step_.threads};
    }

    // Keeps some of a token's inputs, from one place of its row to one of its kept row, if it has one.
    void keep(size_t t, size_t from, size_t to, size_t count) const {
        if (!step_.kept || step_.kept_rows[t] < 0) return;
        float* const row = step_.kept + static_cast<size_t>(step_.kept_rows[t]) * decoder_.kept_size + w_.kept_at;
        std::memcpy(row + to, inputs(t) + from, count * sizeof(float));
    }

    float* inputs(size_t t) const { return buffers_.inputs + t * pitch_; }
    float* results(size_t t) const { return buffers_.results + t * w_.width(); }

    // f(i, load_from, store_to) for each vector of `count` values from i on, with those that are there.
    template <class F>
    DECODESTEP_INLINE static void each_vector(size_t count, F&& f) {
        for (size_t i = 0; i < count; i += kLanes) {
            const size_t values = std::min<size_t>(kLanes, count - i);
            f(
                i, [=](const float* p) { return load_partial(p, values); },
                [=](float* p, f32x16 v) { store_partial(p, v, values); });
        }
    }

    // A convolution that is alone reads the product of two inputs, which takes the place of one, and is multiplied by
    // the third.
    void convolve(const CausalConv1d& call, const ChannelBlock& block) const {
        const bool alone = w_.kind == Mixer::convolution;
        const size_t width = block.end - block.first, begin = call.rows.first(block.row),
                     end = begin + call.rows.tokens(block.row);
        const auto multiply = [&](float* values, const float* by) {
            each_vector(width, [&](size_t i, auto&& load_from, auto&& store_to) {
                store_to(values + i, load_from(values + i) * load_from(by + i));
            });
        };
        for (size_t t = begin; alone && t < end; ++t)
            multiply(inputs(t) + w_.convolved_at() + block.first, inputs(t) + block.first);
        decodestep::DECODESTEP_BUILD::convolve(call, block);
        for (size_t t = begin; t < end; ++t) keep(t, w_.convolved_at() + block.first, block.first, width);
        for (size_t t = begin; alone && t < end; ++t)
            multiply(results(t) + block.first, inputs(t) + w_.gate_at() + block.first);
    }

    // The logarithms of a token's decays in place of its steps, and betas in place of what they are sigmoids of.
    void find_decays(size_t t) const {
        float *steps = inputs(t) + w_.step_at(), *betas = inputs(t) + w_.beta_at();
        for (size_t head = 0; head < w_.heads; ++head)
            steps[head] = w_.decay[head] * softplus(steps[head] + w_.step_bias[head]);
        each_vector(w_.heads, [&](size_t i, auto&& load_from, auto&& store_to) {
            store_to(betas + i, sigmoid(load_from(betas + i)));
        });
    }

    // row = a token's results, every head normalised, and then times the gate's SiLU.
    void gate_normed_heads(size_t t, float* row) const {
        const float *from = results(t), *gate = inputs(t) + w_.gate_at();
        for (size_t first = 0; first < w_.width(); first += w_.columns) {
            const f32x16 rms = broadcast(root_mean_square(from + first, w_.columns, decoder_.eps));
            each_vector(w_.columns, [&](size_t i, auto&& load_from, auto&& store_to) {
                const f32x16 norm = normed(load_from(from + first + i), rms, load_from(w_.norm + i));
                store_to(row + first + i, gated(load_from(gate + first + i), norm));
            });
        }
    }

    // row = a token's results times the gate's SiLU, and then the heads of each group normalised as one row.
    void norm_gated_groups(size_t t, float* row) const {
        const float *from = results(t), *gate = inputs(t) + w_.gate_at();
        const size_t width = w_.width() / w_.key_heads;
        for (size_t first = 0; first < w_.width(); first += width) {
            each_vector(width, [&](size_t i, auto&& load_from, auto&& store_to) {
                store_to(row + first + i, gated(load_from(gate + first + i), load_from(from + first + i)));
            });
            const f32x16 rms = broadcast(root_mean_square(row + first, width, decoder_.eps));
            each_vector(width, [&](size_t i, auto&& load_from, auto&& store_to) {
                store_to(row + first + i, normed(load_from(row + first + i), rms, load_from(w_.norm + first + i)));
            });
        }
    }

    const RecurrentMixer& w_;
    const RecurrentBuffers& buffers_;
    const RecurrentCalls calls_;
    const size_t pitch_;  // of the inputs of a token
};

}  // namespace decodestep::DECODESTEP_BUILD
