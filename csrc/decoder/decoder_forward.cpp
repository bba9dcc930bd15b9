#include "decoder/decoder_forward.h"

#include "decoder/feed_forward_part.h"
#include "decoder/grouped_attention_part.h"
#include "decoder/latent_attention_part.h"
#include "decoder/recurrent_part.h"
#include "decoder/team_size.h"
#include "linear/unpack_linear_panels.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

// A share of a stage of any kind.
class StagePart : public StageMember {
  public:
    using StageMember::StageMember;

    void run() const {
        const auto latents = [&] { return LatentAttentionPart(*this); };
        const auto recurrent = [&] { return RecurrentPart(*this); };
        const auto feed_forward = [&] { return FeedForwardPart(*this); };
        const size_t head_rows = step_.tokens * decoder_.heads;
        switch (stage_.kind) {
            case StageKind::attention_rows:
                return share_rows(step_.tokens, decoder_.hidden, residual_rows(layer().attention_norm));

            case StageKind::project:
                return with_groups([&](const auto& part) { part.project(hidden_rows(layer().attention_norm)); });
            case StageKind::norm_heads:
                return with_groups([](const auto& part) { part.norm_heads(); });
            case StageKind::attend:
                return with_groups([](const auto& part) { part.attend(); });
            case StageKind::merge_partials:
                return GroupedPartials(*this).merge_partials();

            case StageKind::compress:
                return latents().compress(hidden_rows(layer().attention_norm));
            case StageKind::compressed_rows:
                return share_rows(step_.tokens, compressed_width(), latents().compressed_rows());
            case StageKind::project_queries:
                return latents().project_queries(rows(step_.tokens, compressed_width(), latents().compressed_rows()));
            case StageKind::head_rows:
                return share_rows(head_rows, decoder_.latent.nope, latents().head_rows());
            case StageKind::absorb:
                return latents().absorb(
                    rows_of(head_rows, decoder_.latent.nope, latents().rows_of_absorb(), latents().head_rows()));
            case StageKind::score_keys:
                return latents().score_keys();
            case StageKind::select_keys:
                return latents().select_keys();
            case StageKind::attend_latents:
                return latents().attend();
            case StageKind::merge_latents:
                return latents().merge();
            case StageKind::latent_rows:
                return share_rows(head_rows, decoder_.latent.latent, latents().latent_rows());
            case StageKind::value_up:
                return latents().value_up(
                    rows_of(head_rows, decoder_.latent.latent, latents().rows_of_value_up(), latents().latent_rows()));

            case StageKind::project_inputs:
                return recurrent().project(hidden_rows(layer().attention_norm));
            case StageKind::convolve:
                return recurrent().convolve();
            case StageKind::update_delta:
                return recurrent().update_delta();
            case StageKind::update_mamba:
                return recurrent().update_mamba();

            case StageKind::attended_rows:
                return with_attended([&](auto&& attended) { share_rows(step_.tokens, attended_width(), attended); });
            case StageKind::add_output:
                return add_output();
            case StageKind::add_attended:
                return add_branch(layer().attention_post_norm);

            case StageKind::ffn_rows:
                return share_rows(step_.tokens, decoder_.hidden, residual_rows(layer().ffn_norm));
            case StageKind::gate_up:
                return feed_forward().gate_up(hidden_rows(layer().ffn_norm));
            case StageKind::gated_rows:
                return share_rows(step_.tokens, gated_width(), copied(plan_.gated, gated_width()));
            case StageKind::add_down:
                return add_product(layer().feed_forward.down, layer().feed_forward.down_bias,
                                   layer().ffn_post_norm || layer().beside.is_given(),
                                   rows(step_.tokens, gated_width(), copied(plan_.gated, gated_width())));
            case StageKind::add_gated:
                if (layer().beside.is_given()) feed_forward().join_blocks();
                return add_branch(layer().ffn_post_norm, layer().input.is_given() ? 1.0f : layer().scale);

            case StageKind::input_gate_rows:
                return share_rows(step_.tokens, decoder_.hidden, residual_rows(nullptr));
            case StageKind::gate_input:
                return feed_forward().gate_input(hidden_rows(nullptr));
            case StageKind::input_rows:
                return share_rows(step_.tokens, input_width(), copied(plan_.gated, input_width()));
            case StageKind::add_input:
                return add_product(layer().input.output, nullptr, true,
                                   rows(step_.tokens, input_width(), copied(plan_.gated, input_width())));
            case StageKind::add_input_norm:
                return add_branch(layer().input.norm, layer().scale);

            case StageKind::router_rows:
                return share_rows(step_.tokens, decoder_.hidden, residual_rows(layer().beside.router));
            case StageKind::route:
                return feed_forward().route(
                    hidden_rows(layer().beside.is_given() ? layer().beside.router : layer().ffn_norm));
            case StageKind::choose:
                return feed_forward().choose();
            case StageKind::expert_input_rows:
                return share_rows(step_.tokens, layer().mixture.routed.inputs(), feed_forward().expert_input_rows());
            case StageKind::gate_up_experts:
                return feed_forward().gate_up_experts(
                    layer().has_experts_apart()
                        ? rows(step_.tokens, layer().mixture.routed.inputs(), feed_forward().expert_input_rows())
                        : hidden_rows(layer().ffn_norm));
            case StageKind::expert_rows:
                return feed_forward().share_gated();
            case StageKind::add_experts:
                return feed_forward().add_experts();

            case StageKind::shared_rows:
                return share_rows(step_.tokens, shared_width(), copied(plan_.shared_gated, shared_width()));
            case StageKind::add_shared:
                return add_product(layer().mixture.shared.down, layer().mixture.shared.down_bias, false,
                                   rows(step_.tokens, shared_width(), copied(plan_.shared_gated, shared_width())));
            case StageKind::latent_sum_rows:
                return share_rows(step_.tokens, layer().mixture.latent_up.in, feed_forward().latent_sum_rows());
            case StageKind::add_latent_sum:
                return add_product(layer().mixture.latent_up, nullptr, false,
                                   rows(step_.tokens, layer().mixture.latent_up.in, feed_forward().latent_sum_rows()));

            case StageKind::hidden:
                return store_hidden();
            case StageKind::logits_rows:
                return share_rows(step_.rows, decoder_.hidden, residual_rows(decoder_.norm, step_.wanted));
            case StageKind::logits:
                return store_logits();
        }
    }

  private:
    const DecoderLayer& layer() const { return *stage_.layer; }
    size_t compressed_width() const { return layer().latent.query.in; }
    size_t input_width() const { return layer().input.width(); }
    size_t attended_width() const { return DecoderPlan::in_blocks(plan_.attended_width(layer())); }
    size_t gated_width() const { return layer().feed_forward.width(); }
    size_t shared_width() const { return layer().mixture.shared.width(); }

    Activations hidden_rows(const float* gamma) const {
        return rows(step_.tokens, decoder_.hidden, residual_rows(gamma));
    }

    // Calls body with the part that reads and writes the step's type of cache.
    template <class Body>
    void with_groups(Body&& body) const {
        with_cache(step_.cache, [&]<class Cache>() { body(GroupedAttentionPart<Cache>(*this)); });
    }

    // Calls body with what makes rows of the mixer's outputs.
    template <class Body>
    void with_attended(Body&& body) const {
        if (layer().has_state()) return RecurrentPart(*this).with_results(body);
        if (decoder_.latent.is_given()) return body(copied(plan_.attended, plan_.attended_width(layer())));
        GroupedPartials(*this).with_attended(body);
    }

    std::pair<const LinearPanelWeight*, const float*> output_of_mixer() const {
        const auto of = [](const auto& mixer) { return std::pair(&mixer.output, mixer.output_bias); };
        return layer().has_state()          ? of(layer().recurrent)
               : decoder_.latent.is_given() ? of(layer().latent)
                                            : of(layer().grouped);
    }

    void add_output() const {
        const auto [output, bias] = output_of_mixer();
        const Activations x = row_space(step_.tokens, attended_width());
        if (begins_rows()) with_attended([&](auto&& attended) { make_rows(x, {0, step_.tokens}, attended); });
        add_product(*output, bias, layer().parallel || layer().attention_post_norm, x);
    }

    void store_hidden() const {
        share_.each(step_.tokens, [&](size_t t) {
            const float* from = plan_.x + t * decoder_.hidden;
            float* to = step_.hidden + t * decoder_.hidden;
            const RowNorm norm = row_norm(from, decoder_.hidden, decoder_.eps, decoder_.centred_norms);
            for (size_t j = 0; j < decoder_.hidden; j += kLanes)
                store(to + j, norm(load(from + j), load(decoder_.norm + j)));
        });
    }

    void store_logits() const {
        const size_t width = decoder_.logits.out;
        const Activations x = rows(step_.rows, decoder_.hidden, residual_rows(decoder_.norm, step_.wanted));
        store_products(decoder_.logits, panels(), panels_after(), x, step_.rows, step_.logits, width,
                       decoder_.logits_scale, nullptr, decoder_.logits_cap);
    }
};

// The tokens' rows of the embedding, times its factor. Not by std::visit or std::get, whose exception is code that the
// linker shares between tiers.
void gather_embeddings(const DecoderForward& step, float* x) {
    const Decoder& d = *step.decoder;
    if (const auto* rows = std::get_if<RowWeight>(&d.embedding))
        gather_rows({*rows, step.ids, step.tokens, x, step.threads});
    else if (const auto* panels = std::get_if<LinearPanelWeight>(&d.embedding))
        gather_panels({*panels, step.ids, step.tokens, x, step.threads});
    if (d.embedding_scale == 1.0f) return;
    for (size_t i = 0; i < step.tokens * d.hidden; ++i) x[i] *= d.embedding_scale;
}

}  // namespace

void decoder_forward(const DecoderForward& call) {
    DecoderForward step = call;
    step.threads = team_size(call);
    StepBuffers buffers;
    DecoderPlan plan(step, buffers);
    gather_embeddings(step, plan.x);
    StepClock clock(step.costs);
    const auto begin = [&](size_t stage) {
        clock.begin(step_part(plan.stages[stage].kind));
        plan.begin(plan.stages[stage]);
    };
    parallel_stages(plan.stages.size(), step.threads, begin,
                    [&](size_t stage, const StageShare& share) { StagePart(plan, plan.stages[stage], share).run(); });
    clock.end();
}

}  // namespace decodestep::DECODESTEP_BUILD
