// The stages of a decoder's step, and the buffers through which they pass their results.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <vector>

#include "attention/lightning_indexer_tasks.h"
#include "attention/mla_attention_tasks.h"
#include "decoder/attention_plan.h"
#include "decoder/index_plan.h"
#include "decoder/member_memory.h"
#include "decoder/panel_sweep.h"
#include "decoder/recurrent_calls.h"
#include "decoder/stage_kind.h"
#include "decoder/step_buffers.h"

namespace decodestep::DECODESTEP_BUILD {

// What the members of the team share in a step. Shares change their own memory and `routing` alone.
class DecoderPlan {
  public:
    DecoderPlan(const DecoderForward& step, StepBuffers& buffers)
        : step(step),
          decoder(*step.decoder),
          replicated_rows(std::max(step.tokens, step.rows) <= replicable(kMaxReplicatedTokens, step.threads)),
          query_width(decoder.latent.is_given() ? decoder.heads * decoder.head_dim
                                                : in_blocks(decoder.heads * decoder.head_dim)),
          lengths(lengths_of(step)),
          order(key_tables(), !IndexPlan::is_needed(step)) {
        decoder.latent.is_given() ? plan_latents(buffers) : plan_groups();
        for (size_t number = 0; number < decoder.layers.size(); ++number) list_layer(number);
        at_ = decoder.layers.size();
        if (step.hidden) stage(StageKind::hidden);
        if (step.rows > 0)
            product(StageKind::logits_rows, StageKind::logits, step.rows, decoder.hidden, {&decoder.logits});
        take_memory(buffers);
    }

    // Prepares a stage, before any of its shares is run: attention to latents and an indexer are told where their
    // layer's are.
    void begin(const Stage& stage) {
        if (stage.kind == StageKind::score_keys) index->begin(stage.layer->latent.indexer);
        if (stage.kind != StageKind::attend_latents) return;
        const auto offset = [&](size_t width) { return page_offset(stage.layer->cache_layer, 0, 0, width); };
        latent_call.kv.data = step.values + offset(latent_call.kv.pitch()) * value_bytes(step.cache);
        latent_call.kr.data = step.keys + offset(decoder.latent.rope) * value_bytes(latent_call.kr.type);
    }

    // The offset of a page's keys or values in the cache, in units of which a position takes `width`. page: its index
    // within the first layer and head.
    size_t page_offset(size_t layer, size_t page, size_t kv_head, size_t width) const {
        return ((layer * decoder.kv_heads + kv_head) * step.slab_pages + page) * width * kPagePositions;
    }
    const int64_t* page_table_of(size_t t) const { return step.page_table + step.sequence[t] * step.table_width; }

    static size_t in_blocks(size_t width) { return round_up(width, kBlockInputs); }

    // The plan of a layer's grouped-query attention.
    const AttentionPlan& groups_of(const GroupedAttention& w) const {
        return *std::find_if(groups.begin(), groups.end(), [&](const auto& plan) { return plan.serves(w); });
    }

    // The values that a token's heads, or its recurrence, give to the output of a layer.
    size_t attended_width(const DecoderLayer& layer) const {
        if (layer.mixer == Mixer::none) return 0;
        if (layer.has_state()) return layer.recurrent.width();
        return decoder.heads * (decoder.latent.is_given() ? decoder.latent.value : layer.grouped.head_values);
    }

    // Whether the partials of divided bands are merged in a separate stage.
    bool merges_apart(const AttentionPlan& plan) const {
        const size_t most = replicated_rows ? replicable(kMaxReplicatedMerge, step.threads) : 0;
        return plan.is_divided() && plan.partials() * decoder.head_dim > most;
    }

    // The partials of divided bands from one on, for heads of this width.
    PartialSoftmaxes partials(size_t first, size_t width) const {
        return PartialSoftmaxes{partials_, width}.from(first);
    }

    // The panels that a seat reads after those of a share, which end at `end`: in its next chunk, in its part of the
    // next sweep, or in the first one of the next step.
    NextPanels panels_after(size_t sweep, const StageShare& share, size_t end) const {
        if (end < share.part_of_seat(sweeps[sweep].count()).end) return sweeps[sweep].from(end);
        const PanelSweep& next = sweeps[sweep + 1 < sweeps.size() ? sweep + 1 : 0];
        return next.from(share.part_of_seat(next.count()).first);
    }

    // The buffer for the rows that a stage makes or reads: one for all members, or one for each.
    float* row_space(size_t member) const { return members[replicated_rows ? member : 0].rows; }

    const DecoderForward& step;
    const Decoder& decoder;
    const bool replicated_rows;
    const size_t query_width;  // values of all queries of a token, padded to whole panels, except with latent attention
    const std::vector<int64_t> lengths;  // the number of positions up to each token's own
    const SharedSplits order;            // of the tokens, for attention
    std::vector<AttentionPlan> groups;   // grouped-query attention, one for each window and number of key-value heads
    MlaAttention latent_call{};          // latent attention of the layer that `begin` was last called for
    std::optional<MlaAttentionTasks> latents;
    std::optional<IndexPlan> index;  // if a token selects positions
    std::vector<Stage> stages;
    std::vector<PanelSweep> sweeps;
    mutable Routing routing;  // if the members share it
    mutable std::vector<MemberMemory> members;

    float* x = nullptr;         // [tokens, hidden]
    float* q = nullptr;         // [tokens, query_width], rounded to bfloat16 where that is the cache's type
    float* attended = nullptr;  // [tokens, attended_width of the layer]
    float* gates = nullptr;     // [tokens, heads * head_dim of the layer]
    float* heads = nullptr;   // [tokens, query_width + 2 * kv_heads * head_dim]: queries, keys and values before norms
    float* branch = nullptr;  // [tokens, hidden]: a block's output before its post norm
    float* gated = nullptr;   // [tokens, width] of a dense block, [tokens * used, width] of experts
    float* shared_gated = nullptr;    // [tokens, width]
    float* router_logits = nullptr;   // [tokens, experts]
    float* shared_gates = nullptr;    // [tokens]
    float* expert_latents = nullptr;  // [tokens, latent of the experts]
    float* expert_sums = nullptr;     // [tokens, inputs of experts] whose sum is not added to x as it is
    RecurrentBuffers recurrent;
    // Of latent attention:
    float* compressed = nullptr;       // [tokens, outputs of query_down]
    float* queries = nullptr;          // [tokens, query_width]
    float* latent = nullptr;           // [tokens, latent + rope]
    float* query_latent = nullptr;     // [tokens, heads, latent], this and the next two by the places of tokens
    float* query_rope = nullptr;       // [tokens, heads, rope]
    float* attended_latent = nullptr;  // [tokens, heads, latent]
    float* index_keys = nullptr;       // [tokens, index_width], not yet normalised

  private:
    static std::vector<int64_t> lengths_of(const DecoderForward& step) {
        std::vector<int64_t> lengths(step.positions, step.positions + step.tokens);
        for (int64_t& length : lengths) ++length;
        return lengths;
    }

    KeyTables key_tables() const {
        return {step.tokens, step.sequence, lengths.data(), step.page_table, step.table_width, kPagePositions};
    }

    void plan_groups() {
        for (const DecoderLayer& layer : decoder.layers) {
            const GroupedAttention& w = layer.grouped;
            if (layer.mixer == Mixer::attention &&
                std::none_of(groups.begin(), groups.end(), [&](const auto& plan) { return plan.serves(w); }))
                groups.emplace_back(step, order, w.window, w.kv_heads);
        }
    }

    void plan_latents(StepBuffers& buffers) {
        const size_t rows_of_heads = step.tokens * decoder.heads;
        query_latent = buffers.take(rows_of_heads * decoder.latent.latent);
        query_rope = buffers.take(rows_of_heads * decoder.latent.rope);
        attended_latent = buffers.take(rows_of_heads * decoder.latent.latent);
        for (size_t place = 0; place < step.tokens; ++place) {
            placed_sequence_.push_back(step.sequence[order.token(place)]);
            placed_lengths_.push_back(lengths[order.token(place)]);
        }
        latent_call = {.query = query_latent,
                       .query_rope = query_rope,
                       .tokens = step.tokens,
                       .heads = decoder.heads,
                       .groups = 1,
                       .kv = rows_in_pages(step.cache, decoder.latent.latent),
                       .kr = rows_in_pages(rope_key_type(step.cache), decoder.latent.rope),
                       .block_size = kPagePositions,
                       .block_table = step.page_table,
                       .blocks = step.table_width,
                       .sequence = placed_sequence_.data(),
                       .lengths = placed_lengths_.data(),
                       .scale = decoder.scale,
                       .out = attended_latent,
                       .threads = step.threads};
        if (decoder.latent.selects()) index_keys = buffers.take(step.tokens * decoder.latent.index_width);
        if (IndexPlan::is_needed(step)) index.emplace(step, latent_call, buffers);
        latents.emplace(latent_call);
    }

    void list_layer(size_t number) {
        at_ = number;
        const DecoderLayer& w = decoder.layers[number];
        if (w.has_state()) list_recurrence(w.recurrent);
        if (w.mixer == Mixer::attention)
            decoder.latent.is_given() ? list_latent_attention(w.latent) : list_grouped_attention(w.grouped);
        attended_floats_ = std::max(attended_floats_, step.tokens * attended_width(w));
        if (w.attention_post_norm && !w.parallel) stage(StageKind::add_attended);
        if (w.mixture.is_given()) list_mixture(w);
        if (w.feed_forward.is_given()) list_feed_forward(w.feed_forward);
        if (w.parallel) stage(StageKind::add_attended);
        if (w.ffn_post_norm || w.beside.is_given()) stage(StageKind::add_gated);
        if (w.input.is_given()) list_input(w.input);
        has_branches_ |=
            w.attention_post_norm || w.ffn_post_norm || w.parallel || w.input.is_given() || w.beside.is_given();
    }

    void list_grouped_attention(const GroupedAttention& w) {
        product(StageKind::attention_rows, StageKind::project, step.tokens, decoder.hidden,
                {&w.query, &w.values_keys, &w.keys, &w.gate});
        if (w.gate.data) gate_floats_ = std::max(gate_floats_, step.tokens * w.gate.out);
        if (w.query_norm) {
            stage(StageKind::norm_heads);
            has_head_norms_ = true;
        }
        stage(StageKind::attend);
        if (merges_apart(groups_of(w))) stage(StageKind::merge_partials);
        product(StageKind::attended_rows, StageKind::add_output, step.tokens, in_blocks(w.output.in), {&w.output});
    }

    void list_recurrence(const RecurrentMixer& w) {
        product(StageKind::attention_rows, StageKind::project_inputs, step.tokens, decoder.hidden,
                {&w.inputs[0], &w.inputs[1], &w.inputs[2], &w.inputs[3]});
        stage(StageKind::convolve);
        if (w.kind != Mixer::convolution)
            stage(w.kind == Mixer::delta ? StageKind::update_delta : StageKind::update_mamba);
        product(StageKind::attended_rows, StageKind::add_output, step.tokens, in_blocks(w.output.in), {&w.output});
        input_floats_ = std::max(input_floats_, step.tokens * w.input_width());
        convolved_floats_ = std::max(convolved_floats_, step.tokens * w.channels());
    }

    void list_latent_attention(const LatentAttention& w) {
        const bool is_compressed = w.query_down.data != nullptr;
        const bool indexes = index && w.indexer.is_given();
        product(StageKind::attention_rows, StageKind::compress, step.tokens, decoder.hidden,
                {is_compressed ? &w.query_down : &w.query, &w.latent, &w.indexer.key,
                 indexes ? &w.indexer.by_head : &kNoWeight});
        if (is_compressed) {
            product(StageKind::compressed_rows, StageKind::project_queries, step.tokens, w.query.in,
                    {&w.query, indexes ? &w.indexer.query : &kNoWeight});
            widest_compressed_ = std::max(widest_compressed_, w.query.in);
        }
        product(StageKind::head_rows, StageKind::absorb, step.tokens * decoder.heads, decoder.latent.nope, {&w.key_up});
        if (indexes) {
            stage(StageKind::score_keys);
            if (index->tasks().select_count() > 0) stage(StageKind::select_keys);
        }
        stage(StageKind::attend_latents);
        if (latents->merge_count() > 0) stage(StageKind::merge_latents);
        product(StageKind::latent_rows, StageKind::value_up, step.tokens * decoder.heads, decoder.latent.latent,
                {&w.value_up});
        product(StageKind::attended_rows, StageKind::add_output, step.tokens, w.output.in, {&w.output});
    }

    void list_feed_forward(const FeedForwardPanels& w) {
        // The sweep lists panels of `gate` if there is one; panel i of `up` is read after panel i of `gate`.
        product(StageKind::ffn_rows, StageKind::gate_up, step.tokens, decoder.hidden, {&w.first()}, {&w.gate, &w.up});
        product(StageKind::gated_rows, StageKind::add_down, step.tokens, w.width(), {&w.down});
        gated_floats_ = std::max(gated_floats_, step.tokens * w.width());
    }

    void list_input(const LayerInput& w) {
        product(StageKind::input_gate_rows, StageKind::gate_input, step.tokens, decoder.hidden, {&w.gate});
        product(StageKind::input_rows, StageKind::add_input, step.tokens, w.width(), {&w.output});
        stage(StageKind::add_input_norm);
        gated_floats_ = std::max(gated_floats_, step.tokens * w.width());
    }

    void list_mixture(const DecoderLayer& layer) {
        const Mixture& w = layer.mixture;
        const FeedForwardPanels &routed = w.routed, &shared = w.shared;
        const size_t entries = step.tokens * w.rule.used, shared_width = shared.is_given() ? shared.width() : 0;
        const LinearPanelWeight none{};
        const bool apart = layer.has_experts_apart();
        const auto unless = [&](bool left_out, const LinearPanelWeight& weight) { return left_out ? &none : &weight; };
        const Forms of_x{&w.router,
                         unless(apart, routed.gate),
                         unless(apart, routed.up),
                         &shared.gate,
                         &shared.up,
                         &w.shared_gate,
                         &w.latent_down};
        const Forms of_routed = apart ? Forms{&routed.gate, &routed.up} : of_x;
        product(layer.beside.is_given() ? StageKind::router_rows : StageKind::ffn_rows, StageKind::route, step.tokens,
                decoder.hidden, {&w.router, &shared.first(), &w.shared_gate, &w.latent_down}, of_x);
        if (!replicated_rows) stage(StageKind::choose);
        if (apart && !replicated_rows) stage(StageKind::expert_input_rows, of_routed);
        stage(StageKind::gate_up_experts, of_routed);
        const Forms of_gated{&routed.down, unless(w.has_latent(), shared.down)};
        if (!replicated_rows) stage(StageKind::expert_rows, of_gated);
        stage(StageKind::add_experts, of_gated);
        row_floats_ = std::max({row_floats_, of_routed.floats(step.tokens, routed.inputs()),
                                of_gated.floats(entries, routed.width()) + of_gated.floats(step.tokens, shared_width)});
        if (w.has_latent()) list_sum_of_latents(w);
        if (apart) sum_floats_ = std::max(sum_floats_, step.tokens * routed.inputs());
        gated_floats_ = std::max(gated_floats_, entries * routed.width());
        shared_floats_ = std::max(shared_floats_, step.tokens * shared_width);
        most_experts_ = std::max(most_experts_, w.rule.experts);
        entries_ = std::max(entries_, entries);
    }

    // What the routed experts of a latent and the shared block add to x.
    void list_sum_of_latents(const Mixture& w) {
        if (w.shared.is_given())
            product(StageKind::shared_rows, StageKind::add_shared, step.tokens, w.shared.width(), {&w.shared.down});
        product(StageKind::latent_sum_rows, StageKind::add_latent_sum, step.tokens, w.latent_up.in, {&w.latent_up});
        expert_latent_floats_ = std::max(expert_latent_floats_, step.tokens * w.latent_up.in);
    }

    void stage(StageKind kind, Forms forms = {}) { stages.push_back({kind, layer(), at_, forms, 0}); }

    void product(StageKind rows_kind, StageKind kind, size_t rows, size_t width,
                 std::initializer_list<const LinearPanelWeight*> weights) {
        product(rows_kind, kind, rows, width, weights, weights);
    }

    // Lists a product with `rows` rows of activations, and the stage that makes them if the members share them.
    void product(StageKind rows_kind, StageKind kind, size_t rows, size_t width, PanelSweep sweep, Forms forms) {
        if (!replicated_rows) stages.push_back({rows_kind, layer(), at_, forms, 0});
        stages.push_back({kind, layer(), at_, forms, sweeps.size()});
        sweeps.push_back(sweep);
        row_floats_ = std::max(row_floats_, forms.floats(rows, width));
    }

    const DecoderLayer* layer() const { return at_ < decoder.layers.size() ? &decoder.layers[at_] : nullptr; }

    void take_memory(StepBuffers& buffers) {
        const auto of_tokens = [&](size_t width) { return buffers.take(step.tokens * width); };
        x = of_tokens(decoder.hidden);
        attended = buffers.take(attended_floats_);
        gates = buffers.take(gate_floats_);
        recurrent = {buffers.take(input_floats_), buffers.take(convolved_floats_), attended};
        gated = buffers.take(gated_floats_);
        shared_gated = buffers.take(shared_floats_);
        router_logits = of_tokens(most_experts_);
        shared_gates = of_tokens(most_experts_ > 0);
        expert_latents = buffers.take(expert_latent_floats_);
        expert_sums = buffers.take(sum_floats_);
        members = std::vector<MemberMemory>(static_cast<size_t>(step.threads));
        for (size_t i = 0; i < (replicated_rows ? members.size() : 1); ++i) members[i].rows = buffers.take(row_floats_);
        if (replicated_rows)
            for (MemberMemory& member : members) resize(member.routing);
        else
            resize(routing);
        branch = of_tokens(has_branches_ ? decoder.hidden : 0);
        if (!decoder.latent.is_given()) {
            q = of_tokens(query_width);
            heads = of_tokens(has_head_norms_ ? query_width + 2 * decoder.kv_heads * decoder.head_dim : 0);
            size_t partials = 0;
            for (const AttentionPlan& plan : groups) partials = std::max(partials, plan.partials());
            partials_ = buffers.take(PartialSoftmaxes::floats(partials, decoder.head_dim));
            return;
        }
        compressed = of_tokens(widest_compressed_);
        queries = of_tokens(query_width);
        latent = of_tokens(decoder.latent.latent + decoder.latent.rope);
    }

    void resize(Routing& chosen) const {
        chosen.experts.resize(entries_);
        chosen.weights.resize(entries_);
    }

    static inline const LinearPanelWeight kNoWeight{};
    size_t at_ = 0;  // the layer that is being listed, their number after the last
    size_t row_floats_ = 0, attended_floats_ = 0, gate_floats_ = 0, input_floats_ = 0, convolved_floats_ = 0,
           gated_floats_ = 0, shared_floats_ = 0, expert_latent_floats_ = 0, sum_floats_ = 0, most_experts_ = 0,
           entries_ = 0, widest_compressed_ = 0;
    bool has_head_norms_ = false, has_branches_ = false;
    std::vector<int64_t> placed_sequence_, placed_lengths_;  // of the tokens by their places
    float* partials_ = nullptr;
};

}  // namespace decodestep::DECODESTEP_BUILD
