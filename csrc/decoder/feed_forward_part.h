// Feed-forward blocks in a decoder's step: dense, or a mixture of experts.
#pragma once

#include "decoder/stage_member.h"
#include "mixture_of_experts/mixture_products.h"
#include "mixture_of_experts/route_row.h"

namespace decodestep::DECODESTEP_ISA {

class FeedForwardPart : public StageMember {
  public:
    FeedForwardPart(const DecoderPlan& plan, const Stage& stage, size_t member, size_t members)
        : StageMember(plan, stage, member, members), w_(stage.layer->feed_forward), m_(stage.layer->mixture) {}

    void gate_up(const Activations& x) const {
        const Range part = panels_of_member();
        const PanelRange panels{part.first, part.end};
        w_.has_gate() ? multiply_dense(w_, panels, x, plan_.gated) : square(x, panels);
    }

    // The router's logits, and the part of the shared block that does not depend on them.
    void route(const Activations& x) const {
        const auto [router, shared] = panels_of_two(m_.router.count());
        const uint8_t* after = shared.first < shared.end ? m_.shared.first().panel(shared.first) : panel_after();
        store_products(m_.router, router, after, x, step_.tokens, plan_.router_logits, m_.router.out);
        multiply_dense(m_.shared, shared, x, plan_.shared_gated);
    }

    // The experts of this member's share of the tokens, for all members.
    void choose() const { choose(plan_.routings[0], part_of(step_.tokens, member_, members_)); }

    void gate_up_experts(const Activations& x) const {
        multiply_experts(m_.routed, expert_rows(), x, stage_.forms, member_, members_, plan_.gated);
    }

    // Rows are in the order of the experts' entries, then the tokens of the shared block.
    size_t gated_count() const { return entries() + (m_.shared.is_given() ? step_.tokens : 0); }
    void share_gated() const {
        const MixtureInputs in = gated_in_space();
        const Range part = part_of(gated_count(), member_, members_);
        for (size_t row = part.first; row < part.end; ++row) store_gated(in, row);
    }

    void add_experts() const {
        MixtureInputs in = gated_in_space();
        for (size_t row = 0; plan_.replicated_rows && row < gated_count(); ++row) store_gated(in, row);
        in.rows = &expert_rows();
        decodestep::DECODESTEP_ISA::add_experts(in, decoder_.residual_scale, member_, members_, plan_.x);
    }

  private:
    size_t entries() const { return step_.tokens * m_.rule.used; }

    // The activation of a block without a gate.
    void square(const Activations& x, PanelRange panels) const {
        multiply_panels(w_.up, panels, panel_after(), x, step_.tokens, [&](size_t i, size_t t, const float* y) {
            float* out = plan_.gated + t * w_.width() + i * kPanelOutputs;
            for (size_t j = 0; j < kPanelOutputs; j += kLanes)
                store(out + j, activated(w_, i * kPanelOutputs + j, nullptr, y + j));
        });
    }

    // The activations of some panels of gate and up, for all tokens; the last panels of the member's share of the
    // stage.
    void multiply_dense(const FeedForwardPanels& w, PanelRange panels, const Activations& x, float* out) const {
        gate_up_panels(w, panels, panel_after(), x, step_.tokens, out + panels.first * kPanelOutputs, w.width());
    }

    void choose(Routing& routing, Range tokens) const {
        const size_t used = m_.rule.used;
        const RouteRow route(m_.rule, thread_scratch(RouteRow::scratch_floats(m_.rule)));
        for (size_t t = tokens.first; t < tokens.end; ++t)
            route(plan_.router_logits + t * m_.rule.experts, routing.experts.data() + t * used,
                  routing.weights.data() + t * used);
    }

    // The tokens grouped by expert. Every member groups them for itself, which is faster than another stage.
    const ExpertRows& expert_rows() const {
        Routing& own = plan_.routings[member_ + 1];
        if (own.layer == stage_.layer_number) return own.rows;
        const Routing& chosen = plan_.replicated_rows ? own : plan_.routings[0];
        if (plan_.replicated_rows) choose(own, {0, step_.tokens});
        own.rows.assign(chosen.experts.data(), chosen.weights.data(), step_.tokens, m_.rule.used, m_.rule.experts);
        own.layer = stage_.layer_number;
        return own.rows;
    }

    MixtureInputs gated_in_space() const {
        float* space = plan_.row_space(member_);
        MixtureInputs in{.routed = &m_.routed,
                         .shared = m_.shared.is_given() ? &m_.shared : nullptr,
                         .rows = nullptr,
                         .gated = stage_.forms.in_space(space, entries(), m_.routed.width()),
                         .shared_gated = {},
                         .tokens = step_.tokens};
        space += stage_.forms.floats(entries(), m_.routed.width());
        if (in.shared) in.shared_gated = stage_.forms.in_space(space, step_.tokens, m_.shared.width());
        return in;
    }

    void store_gated(const MixtureInputs& in, size_t row) const {
        const bool routed = row < entries();
        const Activations& to = routed ? in.gated : in.shared_gated;
        const size_t i = routed ? row : row - entries();
        store_row(to, i, (routed ? plan_.gated : plan_.shared_gated) + i * to.in, to.in);
    }

    const FeedForwardPanels& w_;
    const Mixture& m_;
};

}  // namespace decodestep::DECODESTEP_ISA
