// What the stages of a decoder's step do, and to which operator their time is attributed.
#pragma once

#include "decoder/decoder_forward.h"

namespace decodestep::DECODESTEP_BUILD {

// What a stage does. Stages run one after another, each on all members of the team. The stages named *_rows make the
// activations that the following product reads.
enum class StageKind {
    attention_rows,  // x normalised, for the mixer
    // Grouped-query attention:
    project,     // queries; keys and values, into the cache
    norm_heads,  // of queries and keys, if they have norms; keys into the cache
    attend,
    merge_partials,  // of divided units, if merging takes long
    // Latent attention:
    compress,         // queries or compressed queries; latents and rope keys, not yet normalised; of an indexer too
    compressed_rows,  // compressed queries normalised
    project_queries,  // queries
    head_rows,        // the parts of queries without rope
    absorb,           // these times key_up; the rope parts rotated; latents and rope keys, into the cache
    score_keys,       // of an indexer; perhaps the positions too
    select_keys,      // the positions that tokens attend to
    attend_latents,
    merge_latents,
    latent_rows,  // each head's attention output
    value_up,
    // Recurrences:
    project_inputs,  // what they read
    convolve,        // parts of it; and decays and betas of a delta rule
    update_delta,    // the states, and what queries read of them
    update_mamba,
    // All mixers:
    attended_rows,  // the attention's outputs, or a recurrence's
    add_output,     // x += attended W_output; this product alone with a post norm, or beside the feed-forward block
    add_attended,   // x += that, or its norm
    ffn_rows,       // x normalised
    // A dense block:
    gate_up,     // swiglu of two products, or the squared ReLU of one
    gated_rows,  // its outputs
    add_down,    // x += gated W_down, or with a post norm or beside a mixture this product
    add_gated,   // x += that, normalised, or its sum with the mixture's
    // An input of the layer:
    input_gate_rows,  // x
    gate_input,       // GELU of its gate, times the input
    input_rows,       // that
    add_input,        // this times W_output
    add_input_norm,   // x += that, normalised
    // A mixture of experts:
    router_rows,        // x normalised, for a router beside a dense block
    route,              // the router's logits; gate_up of the shared block
    choose,             // the experts of each token
    expert_input_rows,  // what experts read, if it is not what the router does: of a latent, or x normalised
    gate_up_experts,
    expert_rows,      // the swiglu's outputs, of experts and shared block
    add_experts,      // x += the weighted sum; or this sum alone, of experts of a latent or beside a dense block
    shared_rows,      // then the shared block's outputs
    add_shared,       // x += these W_down
    latent_sum_rows,  // and the experts' sum
    add_latent_sum,   // x += this times latent_up
    hidden,           // x normalised, into the call's `hidden`
    logits_rows,      // the wanted tokens of x, normalised
    logits,
};

// The operator to which a stage's time is attributed; a norm counts towards the product after it.
inline StepPart step_part(StageKind kind) {
    switch (kind) {
        case StageKind::attention_rows:
        case StageKind::project:
        case StageKind::norm_heads:
        case StageKind::project_inputs:
        case StageKind::attended_rows:
        case StageKind::add_output:
        case StageKind::add_attended:
        case StageKind::hidden:
        case StageKind::logits_rows:
        case StageKind::logits:
            return StepPart::linear;
        case StageKind::attend:
        case StageKind::merge_partials:
            return StepPart::grouped_attention;
        case StageKind::compress:
        case StageKind::compressed_rows:
        case StageKind::project_queries:
        case StageKind::head_rows:
        case StageKind::absorb:
            return StepPart::mla_prolog;
        case StageKind::attend_latents:
        case StageKind::merge_latents:
        case StageKind::latent_rows:
        case StageKind::value_up:
            return StepPart::mla_attention;
        case StageKind::score_keys:
        case StageKind::select_keys:
            return StepPart::lightning_indexer;
        case StageKind::convolve:
            return StepPart::convolution;
        case StageKind::update_delta:
            return StepPart::delta_rule;
        case StageKind::update_mamba:
            return StepPart::state_update;
        case StageKind::ffn_rows:
        case StageKind::gate_up:
        case StageKind::gated_rows:
        case StageKind::add_down:
        case StageKind::add_gated:
        case StageKind::input_gate_rows:
        case StageKind::gate_input:
        case StageKind::input_rows:
        case StageKind::add_input:
        case StageKind::add_input_norm:
            return StepPart::feed_forward;
        case StageKind::router_rows:
        case StageKind::route:
        case StageKind::choose:
            return StepPart::expert_router;
        case StageKind::expert_input_rows:
        case StageKind::gate_up_experts:
        case StageKind::expert_rows:
        case StageKind::add_experts:
        case StageKind::shared_rows:
        case StageKind::add_shared:
        case StageKind::latent_sum_rows:
        case StageKind::add_latent_sum:
            return StepPart::experts;
    }
    return StepPart::linear;
}

}  // namespace decodestep::DECODESTEP_BUILD
