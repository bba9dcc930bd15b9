// Feed-forward blocks in a decoder's step: dense, or a mixture of experts, or both beside each other.
#pragma once

#include "decoder/stage_member.h"
#include "mixture_of_experts/mixture_products.h"
#include "mixture_of_experts/route_row.h"

namespace decodestep::DECODESTEP_BUILD {

class FeedForwardPart : public StageMember {
  public:
    explicit FeedForwardPart(const StageMember& member)
        : StageMember(member), layer_(*stage_.layer), w_(layer_.feed_forward), m_(layer_.mixture) {}

    void gate_up(const Activations& x) const {
        w_.has_gate() ? multiply_dense(w_, panels(), x, plan_.gated) : square(x);
    }

    // GELU of the gate of a layer's input, times that input.
    void gate_input(const Activations& x) const {
        const LayerInput& w = layer_.input;
        const size_t pitch = decoder_.layers.size() * w.width();  // of a token's inputs
        multiply_panels(w.gate, panels(), panels_after(), x, step_.tokens, [&](size_t i, size_t t, const float* y) {
            const size_t first = i * kPanelOutputs;
            const float* input = step_.layer_inputs + t * pitch + stage_.layer_number * w.width() + first;
            for (size_t j = 0; j < kPanelOutputs; j += kLanes)
                store(plan_.gated + t * w.width() + first + j, gelu_gated(load(y + j), load(input + j)));
        });
    }

    // The router's logits, and the part of the shared block that does not depend on them.
    void route(const Activations& x) const {
        const auto [router, after_router] = panels_of(0);
        store_products(m_.router, router, after_router, x, step_.tokens, plan_.router_logits, m_.router.out, 1.0f,
                       m_.router_bias);
        multiply_dense(m_.shared, panels_of(1).first, x, plan_.shared_gated);
        const auto [gate, after_gate] = panels_of(2);
        store_products(m_.shared_gate, gate, after_gate, x, step_.tokens, plan_.shared_gates, 1);
        const auto [latent, after_latent] = panels_of(3);
        store_products(m_.latent_down, latent, after_latent, x, step_.tokens, plan_.expert_latents, m_.latent_down.out);
    }

    // The experts of the share's tokens, for all members.
    void choose() const { choose(plan_.routing, share_.of(step_.tokens)); }

    // What experts read that read other rows than the router, and the sum of those of a latent.
    auto expert_input_rows() const {
        return normalised(m_.has_latent() ? plan_.expert_latents : plan_.x, m_.routed.inputs(), layer_.beside.experts,
                          decoder_.eps, decoder_.centred_norms);
    }
    auto latent_sum_rows() const { return copied(plan_.expert_sums, m_.routed.inputs()); }

    void gate_up_experts(const Activations& x) const {
        const size_t width = layer_.has_experts_apart() ? m_.routed.inputs() : 0;
        share_.each(step_.tokens, [&](size_t t) { std::fill_n(plan_.expert_sums + t * width, width, 0.0f); });
        if (m_.shared_gate.data) share_.each(step_.tokens, [&](size_t t) { multiply_shared(t); });
        multiply_experts(m_.routed, expert_rows(), x, stage_.forms, share_, plan_.gated);
    }

    void share_gated() const {
        const MixtureInputs in = gated_in_space();
        share_.each(in.count(), [&](size_t row) { in.store(row, plan_.gated, plan_.shared_gated); });
    }

    void add_experts() const {
        MixtureInputs in = gated_in_space();
        if (begins_rows())
            for (size_t row = 0; row < in.count(); ++row) in.store(row, plan_.gated, plan_.shared_gated);
        in.rows = &expert_rows();
        layer_.has_experts_apart()
            ? decodestep::DECODESTEP_BUILD::add_experts(in, 1.0f, share_, plan_.expert_sums)
            : decodestep::DECODESTEP_BUILD::add_experts(in, decoder_.residual_scale, share_, plan_.x);
    }

    // branch = the sum of its norm and that of the experts' sum, for the share's tokens.
    void join_blocks() const {
        const BesideNorms& norms = layer_.beside;
        share_.each(step_.tokens, [&](size_t t) {
            float* dense = plan_.branch + t * decoder_.hidden;
            const float* experts = plan_.expert_sums + t * decoder_.hidden;
            const auto norm_of = [&](const float* row) {
                return row_norm(row, decoder_.hidden, decoder_.eps, decoder_.centred_norms);
            };
            const RowNorm of_dense = norm_of(dense), of_experts = norm_of(experts);
            for (size_t j = 0; j < decoder_.hidden; j += kLanes)
                store(dense + j, of_dense(load(dense + j), load(norms.dense_post + j)) +
                                     of_experts(load(experts + j), load(norms.experts_post + j)));
        });
    }

  private:
    size_t entries() const { return step_.tokens * m_.rule.used; }

    // What the shared block gives for a token is linear in its activations: they are multiplied by the sigmoid.
    void multiply_shared(size_t t) const {
        const f32x16 factor = sigmoid(broadcast(plan_.shared_gates[t]));
        float* row = plan_.shared_gated + t * m_.shared.width();
        for (size_t i = 0; i < m_.shared.width(); i += kLanes) store(row + i, load(row + i) * factor);
    }

    // The activation of a block without a gate.
    void square(const Activations& x) const {
        multiply_panels(w_.up, panels(), panels_after(), x, step_.tokens, [&](size_t i, size_t t, const float* y) {
            float* out = plan_.gated + t * w_.width() + i * kPanelOutputs;
            for (size_t j = 0; j < kPanelOutputs; j += kLanes)
                store(out + j, activated(w_, i * kPanelOutputs + j, nullptr, y + j));
        });
    }

    // The activations of some panels of gate and up, for all tokens; the last panels of the share.
    void multiply_dense(const FeedForwardPanels& w, Range panels, const Activations& x, float* out) const {
        gate_up_panels(w, panels, panels_after(), x, step_.tokens, out + panels.first * kPanelOutputs, w.width());
    }

    void choose(Routing& routing, Range tokens) const {
        const size_t used = m_.rule.used;
        const ThreadScratch scratch(RouteRow::scratch_floats(m_.rule));
        const RouteRow route(m_.rule, scratch.data());
        for (size_t t = tokens.first; t < tokens.end; ++t) {
            int64_t* experts = routing.experts.data() + t * used;
            float* weights = routing.weights.data() + t * used;
            route(plan_.router_logits + t * m_.rule.experts, experts, weights);
            for (size_t j = 0; m_.factors && j < used; ++j) weights[j] *= m_.factors[experts[j]];
        }
    }

    // The tokens grouped by expert. Every member groups them for itself, which is faster than another stage.
    const ExpertRows& expert_rows() const {
        Routing& own = own_.routing;
        if (own.layer == stage_.layer_number) return own.rows;
        const Routing& chosen = plan_.replicated_rows ? own : plan_.routing;
        if (plan_.replicated_rows) choose(own, {0, step_.tokens});
        own.rows.assign(chosen.experts.data(), chosen.weights.data(), step_.tokens, m_.rule.used, m_.rule.experts);
        own.layer = stage_.layer_number;
        return own.rows;
    }

    MixtureInputs gated_in_space() const {
        float* space = plan_.row_space(share_.member);
        MixtureInputs in{.routed = &m_.routed,
                         .shared = m_.shared.is_given() && !m_.has_latent() ? &m_.shared : nullptr,
                         .rows = nullptr,
                         .gated = stage_.forms.in_space(space, entries(), m_.routed.width()),
                         .shared_gated = {},
                         .entries = entries(),
                         .tokens = step_.tokens};
        space += stage_.forms.floats(entries(), m_.routed.width());
        if (in.shared) in.shared_gated = stage_.forms.in_space(space, step_.tokens, m_.shared.width());
        return in;
    }

    const DecoderLayer& layer_;
    const FeedForwardPanels& w_;
    const Mixture& m_;
};

}  // namespace decodestep::DECODESTEP_BUILD
