// The stages of a decoder's step, and the memory in which one stage leaves what the next one reads.
#pragma once

#include <algorithm>
#include <vector>

#include "decoder/attention_plan.h"
#include "decoder/step_buffers.h"
#include "linear/panel_product.h"

namespace decodestep::DECODESTEP_ISA {

// What a stage does. Stages run one after another: every member of the team of threads does its part of a stage, then
// waits for the others. The stages named after rows make the activations that the product after them reads.
enum class StageKind {
    attention_rows,  // x normalised
    project,         // queries; keys and values to the cache
    attend,
    merge_states,   // of units in pieces, where that is much
    attended_rows,  // the attention's outputs
    add_output,     // x += attended W_output
    ffn_rows,       // x normalised
    gate_up,        // swiglu of two products
    gated_rows,     // the swiglu's outputs
    add_down,       // x += gated W_down
    logits_rows,    // x of the wanted tokens normalised
    logits,
};

struct Stage {
    StageKind kind;
    const DecoderLayer* layer;  // null after the last layer
    size_t layer_number;
    size_t sweep;  // of a product: the number of its PanelSweep
};

// The panels that one product reads, in the order of reading: those of one weight, or of two.
struct PanelSweep {
    const LinearPanelWeight *first, *second = nullptr;

    size_t count() const { return first->count() + (second ? second->count() : 0); }
    const uint8_t* panel(size_t i) const {
        return i < first->count() || !second ? first->panel(i) : second->panel(i - first->count());
    }
};

// Up to so many tokens, every member of the team makes all activation rows for itself: that takes less time than
// another stage to share them would.
constexpr size_t kMaxReplicatedTokens = 4;

// And up to so many floats, every member merges the states of the attention for itself.
constexpr size_t kMaxReplicatedMerge = size_t{1} << 15;

struct Range {
    size_t first, end;
};

// The part of `units` that is one member's.
inline Range part_of(size_t units, size_t member, size_t members) {
    return {units * member / members, units * (member + 1) / members};
}

// What every member of the team knows of a step.
class Plan {
  public:
    Plan(const DecoderForward& step, StepBuffers& buffers)
        : a(step),
          d(*step.decoder),
          replicated_rows(step.tokens <= kMaxReplicatedTokens && step.rows <= kMaxReplicatedTokens),
          attention(step),
          merges_apart(!attention.cut_units().empty() &&
                       (!replicated_rows || attention.states() * d.head_dim > kMaxReplicatedMerge)),
          query_width(d.heads * d.head_dim) {
        for (size_t number = 0; number < d.layers.size(); ++number) list_layer(number);
        if (a.rows > 0) list_logits();
        take_memory(buffers);
    }

    size_t splits_of(size_t t) const { return key_splits(a.positions[t] + 1); }

    // Where keys or values of a page lie, in values from the beginning of the cache. page: its place in the first layer
    // and head.
    size_t page_offset(size_t layer, size_t page, size_t kv_head) const {
        return ((layer * d.kv_heads + kv_head) * a.slab_pages + page) * d.head_dim * kPagePositions;
    }
    const int64_t* page_table_of(size_t t) const { return a.page_table + a.sequence[t] * a.table_width; }

    // The states of a unit in pieces after one split.
    SoftmaxStates states(const AttentionUnit& unit, size_t split) const {
        return states_.from(unit.first_state + split * unit.queries());
    }

    Range panels_of(size_t sweep, size_t member, size_t members) const {
        return part_of(sweeps[sweep].count(), member, members);
    }

    // The panel that a member reads first after a sweep: of the next one, or of the next step's first one.
    const uint8_t* first_panel_after(size_t sweep, size_t member, size_t members) const {
        const size_t next = sweep + 1 < sweeps.size() ? sweep + 1 : 0;
        return sweeps[next].panel(panels_of(next, member, members).first);
    }

    const DecoderForward& a;
    const Decoder& d;
    const bool replicated_rows;
    const AttentionPlan attention;
    const bool merges_apart;   // in a stage of its own
    const size_t query_width;  // values of all queries of a token
    std::vector<Stage> stages;
    std::vector<PanelSweep> sweeps;

    float* x = nullptr;            // [tokens, hidden]
    Bf16* q = nullptr;             // [tokens, query_width]
    float* gated = nullptr;        // [tokens, feed_forward]
    float* attended = nullptr;     // [tokens, query_width]
    Activations shared;            // the rows that a product reads, without replicated_rows
    std::vector<Activations> own;  // the same for each member, with replicated_rows

  private:
    void list_layer(size_t number) {
        const DecoderLayer& w = d.layers[number];
        const auto stage = [&](StageKind kind) { stages.push_back({kind, &w, number, 0}); };
        const auto rows = [&](StageKind kind) {
            if (!replicated_rows) stage(kind);
        };
        const auto product = [&](StageKind kind, PanelSweep panels) {
            stages.push_back({kind, &w, number, sweeps.size()});
            sweeps.push_back(panels);
        };
        rows(StageKind::attention_rows);
        product(StageKind::project, {&w.query, &w.values_keys});
        stage(StageKind::attend);
        if (merges_apart) stage(StageKind::merge_states);
        rows(StageKind::attended_rows);
        product(StageKind::add_output, {&w.output});
        rows(StageKind::ffn_rows);
        product(StageKind::gate_up, {&w.gate});  // which reads panel i of `up` after panel i of `gate`
        rows(StageKind::gated_rows);
        product(StageKind::add_down, {&w.down});
    }

    void list_logits() {
        if (!replicated_rows) stages.push_back({StageKind::logits_rows, nullptr, 0, 0});
        stages.push_back({StageKind::logits, nullptr, 0, sweeps.size()});
        sweeps.push_back({&d.logits});
    }

    void take_memory(StepBuffers& buffers) {
        bool as_values = false, as_bytes = false;
        const auto note = [&](const LinearPanelWeight& w) {
            (quantises_activations(w.format) ? as_bytes : as_values) = true;
        };
        for (const DecoderLayer& w : d.layers)
            for (const auto* weight : {&w.query, &w.values_keys, &w.output, &w.gate, &w.up, &w.down}) note(*weight);
        note(d.logits);
        x = buffers.take(a.tokens * d.hidden);
        q = reinterpret_cast<Bf16*>(buffers.take(a.tokens * query_width / 2));
        gated = buffers.take(a.tokens * d.feed_forward);
        attended = buffers.take(a.tokens * query_width);
        states_ = {buffers.take(SoftmaxStates::floats(attention.states(), d.head_dim)), d.head_dim};
        const size_t widest = std::max({d.hidden, query_width, d.feed_forward});
        const auto activations = [&](size_t tokens) {
            float* space = buffers.take(Activations::floats(tokens, widest, as_values, as_bytes));
            return Activations::in_space(space, tokens, widest, as_values, as_bytes);
        };
        if (replicated_rows)
            for (int i = 0; i < a.threads; ++i) own.push_back(activations(kMaxReplicatedTokens));
        else
            shared = activations(std::max(a.tokens, a.rows));
    }

    SoftmaxStates states_{};
};

}  // namespace decodestep::DECODESTEP_ISA
