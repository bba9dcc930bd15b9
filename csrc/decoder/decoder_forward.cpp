#include "decoder/decoder_forward.h"

#include "decoder/feed_forward_part.h"
#include "decoder/grouped_attention_part.h"
#include "decoder/latent_attention_part.h"

namespace decodestep::DECODESTEP_ISA {
namespace {

// A share of a stage of any kind.
class StagePart : public StageMember {
  public:
    using StageMember::StageMember;

    void run() const {
        if (stage_.kind == StageKind::attention_rows)
            return share_rows(step_.tokens, decoder_.hidden, residual_rows(stage_.layer->attention_norm));
        if (stage_.kind < StageKind::compress)
            return with_cache(step_.cache, [&]<class Cache>() { run_grouped<Cache>({plan_, stage_, share_}); });
        if (stage_.kind < StageKind::attended_rows) return run_latent({plan_, stage_, share_});
        if (stage_.kind < StageKind::ffn_rows)
            return decoder_.latent.is_given() ? run_latent_output() : run_grouped_output();
        if (stage_.kind < StageKind::logits_rows) return run_feed_forward({plan_, stage_, share_});
        if (stage_.kind == StageKind::logits_rows)
            return share_rows(step_.rows, decoder_.hidden, residual_rows(decoder_.norm, step_.wanted));
        const Activations x = rows(step_.rows, decoder_.hidden, residual_rows(decoder_.norm, step_.wanted));
        store_products(decoder_.logits, panels(), panels_after(), x, step_.rows, step_.logits, decoder_.logits.out,
                       decoder_.logits_scale);
    }

  private:
    Activations hidden_rows(const float* gamma) const {
        return rows(step_.tokens, decoder_.hidden, residual_rows(gamma));
    }

    template <class Cache>
    void run_grouped(const GroupedAttentionPart<Cache>& part) const {
        const DecoderLayer& w = *stage_.layer;
        switch (stage_.kind) {
            case StageKind::project:
                return part.project(hidden_rows(w.attention_norm));
            case StageKind::norm_heads:
                return part.norm_heads();
            case StageKind::attend:
                return part.attend();
            default:
                return part.merge_states();
        }
    }

    void run_latent(const LatentAttentionPart& part) const {
        const DecoderLayer& w = *stage_.layer;
        const size_t head_rows = step_.tokens * decoder_.heads, compressed = w.latent.query.in;
        switch (stage_.kind) {
            case StageKind::compress:
                return part.compress(hidden_rows(w.attention_norm));
            case StageKind::compressed_rows:
                return share_rows(step_.tokens, compressed, part.compressed_rows());
            case StageKind::project_queries:
                return part.project_queries(rows(step_.tokens, compressed, part.compressed_rows()));
            case StageKind::head_rows:
                return share_rows(head_rows, decoder_.latent.nope, part.head_rows());
            case StageKind::absorb:
                return part.absorb(rows_of(head_rows, decoder_.latent.nope, part.rows_of_absorb(), part.head_rows()));
            case StageKind::attend_latents:
                return part.attend();
            case StageKind::merge_latents:
                return part.merge();
            case StageKind::latent_rows:
                return share_rows(head_rows, decoder_.latent.latent, part.latent_rows());
            default:
                return part.value_up(
                    rows_of(head_rows, decoder_.latent.latent, part.rows_of_value_up(), part.latent_rows()));
        }
    }

    void run_grouped_output() const {
        const GroupedAttention& w = stage_.layer->grouped;
        const GroupedAttentionPart<Bf16Cache> part(plan_, stage_, share_);  // which reads no cache here
        run_output(w.output, w.output_bias, [&] { return part.attended(); });
    }

    void run_latent_output() const {
        const LatentAttention& w = stage_.layer->latent;
        run_output(w.output, w.output_bias, [&] { return copied(plan_.attended, plan_.attended_width); });
    }

    // attended: prepares the attention's outputs and returns the function that stores a row of them.
    template <class Attended>
    void run_output(const LinearPanelWeight& output, const float* bias, Attended&& attended) const {
        const float* post_norm = stage_.layer->attention_post_norm;
        const size_t width = DecoderPlan::in_blocks(plan_.attended_width);
        if (stage_.kind == StageKind::attended_rows) return share_rows(step_.tokens, width, attended());
        if (stage_.kind == StageKind::add_attended) return add_branch(post_norm);
        const Activations x = row_space(step_.tokens, width);
        if (begins_rows()) make_rows(x, {0, step_.tokens}, attended());
        add_product(output, bias, post_norm, x);
    }

    void run_feed_forward(const FeedForwardPart& part) const {
        const DecoderLayer& w = *stage_.layer;
        const size_t width = w.feed_forward.width();
        switch (stage_.kind) {
            case StageKind::ffn_rows:
                return share_rows(step_.tokens, decoder_.hidden, residual_rows(w.ffn_norm));
            case StageKind::gate_up:
                return part.gate_up(hidden_rows(w.ffn_norm));
            case StageKind::gated_rows:
                return share_rows(step_.tokens, width, copied(plan_.gated, width));
            case StageKind::add_down:
                return add_product(w.feed_forward.down, w.feed_forward.down_bias, w.ffn_post_norm,
                                   rows(step_.tokens, width, copied(plan_.gated, width)));
            case StageKind::add_gated:
                return add_branch(w.ffn_post_norm);
            case StageKind::route:
                return part.route(hidden_rows(w.ffn_norm));
            case StageKind::choose:
                return part.choose();
            case StageKind::gate_up_experts:
                return part.gate_up_experts(hidden_rows(w.ffn_norm));
            case StageKind::expert_rows:
                return part.share_gated();
            default:
                return part.add_experts();
        }
    }
};

}  // namespace

void decoder_forward(const DecoderForward& step) {
    StepBuffers buffers;
    const DecoderPlan plan(step, buffers);
    gather_rows({step.decoder->embedding, step.ids, step.tokens, plan.x, step.threads});
    if (const float scale = step.decoder->embedding_scale; scale != 1.0f)
        for (size_t i = 0; i < step.tokens * step.decoder->hidden; ++i) plan.x[i] *= scale;
    StepClock clock(step.costs);
    parallel_stages(plan.stages.size(), step.threads, [&](size_t stage, const StageShare& share) {
        if (share.is_first()) clock.begin(step_part(plan.stages[stage].kind));
        StagePart(plan, plan.stages[stage], share).run();
    });
    clock.end();
}

}  // namespace decodestep::DECODESTEP_ISA
