#include "decoder/decoder_forward.h"

#include "core/parallel.h"
#include "decoder/decoder_plan.h"
#include "elementwise/rms_norm_row.h"
#include "elementwise/rope.h"
#include "elementwise/silu.h"
#include "simd/rounding.h"

namespace decodestep::DECODESTEP_ISA {
namespace {

// One member's part of one stage.
class StagePart {
  public:
    StagePart(const Plan& plan, const Stage& stage, size_t member, size_t members)
        : plan_(plan), a_(plan.a), d_(plan.d), stage_(stage), member_(member), members_(members) {}

    void run() const;

  private:
    // ---- The rows that a product reads, by a function make(out, t) that stores row t.

    // The input of a product: all rows, made here if they are replicated; else those that the stage before has made.
    template <class Make>
    Activations rows(size_t count, size_t width, Make&& make) const {
        if (!plan_.replicated_rows) return plan_.shared.with_width(width);
        const Activations out = plan_.own[member_].with_width(width);
        for (size_t t = 0; t < count; ++t) make(out, t);
        return out;
    }

    // This member's part of the rows that all members read in the next stage.
    template <class Make>
    void share_rows(size_t count, size_t width, Make&& make) const {
        const Activations out = plan_.shared.with_width(width);
        const Range part = part_of(count, member_, members_);
        for (size_t t = part.first; t < part.end; ++t) make(out, t);
    }

    // rms_norm of row numbers[t] of the residual stream; of row t without numbers.
    auto normalised(const float* gamma, const int64_t* numbers = nullptr) const {
        return [this, gamma, numbers](const Activations& out, size_t t) {
            const float* x = plan_.x + (numbers ? static_cast<size_t>(numbers[t]) : t) * d_.hidden;
            const f32x16 rms = broadcast(root_mean_square(x, d_.hidden, d_.eps));
            store_blocks(out, t, [&](size_t b) -> Block {
                const size_t k = b * kBlockInputs;
                return {normed(load(x + k), rms, load(gamma + k)),
                        normed(load(x + k + kLanes), rms, load(gamma + k + kLanes))};
            });
        };
    }

    static auto copied(const float* values, size_t width) {
        return [=](const Activations& out, size_t t) { store_row(out, t, values + t * width, width); };
    }

    // The attention's outputs; those of units in pieces are merged here unless a stage has done so.
    auto attended() const {
        const float* rows = plan_.attended;
        const auto& cut_units = plan_.attention.cut_units();
        if (!cut_units.empty() && !plan_.merges_apart) {
            const size_t values = a_.tokens * plan_.query_width;
            float* own = thread_scratch(values + SoftmaxState::floats(d_.head_dim));
            std::memcpy(own, plan_.attended, values * sizeof(float));
            for (const AttentionUnit& unit : cut_units)
                for (size_t q = 0; q < unit.queries(); ++q) merge(unit, q, {own + values, d_.head_dim}, own);
            rows = own;
        }
        return copied(rows, plan_.query_width);
    }

    // ---- Products

    // Calls body(i, next_panel) for this member's panels of the stage's sweep.
    template <class Body>
    void sweep(Body&& body) const {
        const PanelSweep& panels = plan_.sweeps[stage_.sweep];
        const Range part = plan_.panels_of(stage_.sweep, member_, members_);
        for (size_t i = part.first; i < part.end; ++i)
            body(i, i + 1 < part.end ? panels.panel(i + 1) : plan_.first_panel_after(stage_.sweep, member_, members_));
    }

    void project(const DecoderLayer& w, const Activations& x) const {
        sweep([&](size_t i, const uint8_t* next_panel) {
            const size_t queries = w.query.count();
            if (i < queries)
                multiply_panel(
                    w.query, i, next_panel, x, a_.tokens, [&](size_t t, float* y) { store_queries(t, i, y); },
                    [&](size_t t) { return query_at(t, i); });
            else
                multiply_panel(w.values_keys, i - queries, next_panel, x, a_.tokens,
                               [&](size_t t, float* y) { store_in_cache(t, (i - queries) * kPanelOutputs, y); });
        });
    }

    void add_product(const LinearPanelWeight& w, const Activations& x) const {
        sweep([&](size_t i, const uint8_t* next_panel) {
            const auto row = [&](size_t t) { return plan_.x + t * d_.hidden + i * kPanelOutputs; };
            const auto add = [&](size_t t, const float* y) {
                for (size_t j = 0; j < kPanelOutputs; j += kLanes) store(row(t) + j, load(row(t) + j) + load(y + j));
            };
            multiply_panel(w, i, next_panel, x, a_.tokens, add, row);
        });
    }

    void gate_up(const DecoderLayer& w, const Activations& x) const {
        sweep([&](size_t i, const uint8_t* next_panel) {
            alignas(64) float gate[kTileTokens][kPanelOutputs], up[kTileTokens][kPanelOutputs];
            const auto row = [&](size_t t) { return plan_.gated + t * d_.feed_forward + i * kPanelOutputs; };
            each_tile(a_.tokens, [&](size_t first, size_t count) {
                const bool once = first == 0;
                prefetch_outputs(first, count, row);
                panel_tile(w.gate.format, w.gate.blocks(), w.gate.panel(i), once ? w.up.panel(i) : nullptr, x, first,
                           count, gate);
                panel_tile(w.up.format, w.up.blocks(), w.up.panel(i), once ? next_panel : nullptr, x, first, count, up);
                for (size_t t = 0; t < count; ++t)
                    for (size_t j = 0; j < kPanelOutputs; j += kLanes)
                        store(row(first + t) + j, gated(load(gate[t] + j), load(up[t] + j)));
            });
        });
    }

    void logits(const Activations& x) const {
        const LinearPanelWeight& w = d_.logits;
        sweep([&](size_t i, const uint8_t* next_panel) {
            const size_t first = i * kPanelOutputs, count = std::min(kPanelOutputs, w.out - first);
            multiply_panel(w, i, next_panel, x, a_.rows, [&](size_t r, const float* y) {
                std::memcpy(a_.logits + r * w.out + first, y, count * sizeof(float));
            });
        });
    }

    // ---- Queries, keys and values

    // Rotates sixteen outputs of a head, from `column` of it on, by the position of token t.
    void rotate(size_t t, size_t column, float* y) const {
        const size_t at = a_.positions[t] * (d_.head_dim / 2) + column / 2;
        store(y, rotate_pairs(load(y), a_.sin + at, a_.cos + at));
    }

    Bf16* query_at(size_t t, size_t panel) const { return plan_.q + t * plan_.query_width + panel * kPanelOutputs; }

    void store_queries(size_t t, size_t panel, float* y) const {
        for (size_t i = 0; i < kPanelOutputs; i += kLanes) rotate(t, (panel * kPanelOutputs + i) % d_.head_dim, y + i);
        store_sums(query_at(t, panel), y, kPanelOutputs);
    }

    // Outputs [first, first + kPanelOutputs) of values_keys, sixteen at a time: all of one head.
    void store_in_cache(size_t t, size_t first, float* y) const {
        const size_t position = a_.positions[t], row = position % kPagePositions;
        const size_t page = plan_.page_table_of(t)[position / kPagePositions];
        for (size_t i = 0; i < kPanelOutputs; i += kLanes) {
            const size_t output = first + i, head = output / d_.head_dim, column = output % d_.head_dim;
            const bool is_key = head >= d_.kv_heads;
            if (is_key) rotate(t, column, y + i);
            Bf16 sixteen[kLanes];
            store_sums(sixteen, load(y + i));
            if (is_key)
                store_key(plan_.page_offset(stage_.layer_number, page, head - d_.kv_heads), row, column, sixteen);
            else
                store_value(plan_.page_offset(stage_.layer_number, page, head), row, column, sixteen);
        }
    }

    void store_key(size_t page_offset, size_t row, size_t column, const Bf16* sixteen) const {
        uint16_t* pair = a_.keys + page_offset + column * kPagePositions + 2 * row;
        for (size_t c = 0; c < kLanes; c += 2, pair += 2 * kPagePositions)
            std::memcpy(pair, sixteen + c, 2 * sizeof(Bf16));
    }

    void store_value(size_t page_offset, size_t row, size_t column, const Bf16* sixteen) const {
        uint16_t* pair = a_.values + page_offset + row / 2 * 2 * d_.head_dim + 2 * column;
        for (size_t c = 0; c < kLanes; ++c) pair[2 * c + row % 2] = sixteen[c].bits;
    }

    // ---- Attention

    Queries queries_of(const AttentionUnit& unit) const {
        Queries q;
        for (; q.count < unit.queries(); ++q.count) {
            const size_t t = unit.token_of(q.count);
            q.query[q.count] = plan_.q + t * plan_.query_width + unit.head_of(q.count) * d_.head_dim;
            q.length[q.count] = a_.positions[t] + 1;
        }
        return q;
    }

    HeadPages pages(const AttentionUnit& unit) const {
        const size_t at = plan_.page_offset(stage_.layer_number, 0, unit.kv_head);
        return {a_.keys + at, a_.values + at, plan_.page_table_of(unit.run.first), d_.head_dim};
    }

    // Where a query's output lies in `rows`, [tokens, query_width].
    float* output_of(const AttentionUnit& unit, size_t query, float* rows) const {
        return rows + unit.token_of(query) * plan_.query_width + unit.head_of(query) * d_.head_dim;
    }

    void attend() const {
        plan_.attention.each_task(member_, members_, [&](const AttentionTask& task) {
            const AttentionUnit& unit = plan_.attention.unit(task.unit);
            if (unit.pieces == 1) return attend_whole(unit);
            const Queries q = queries_of(unit);
            for (size_t split = task.first; split < task.end; ++split)
                attend_split(q, pages(unit), d_.scale, split, plan_.states(unit, split));
        });
    }

    void attend_whole(const AttentionUnit& unit) const {
        const Queries q = queries_of(unit);
        const size_t size = SoftmaxStates::floats(q.count, d_.head_dim);
        float* scratch = thread_scratch(2 * size);
        const SoftmaxStates merged{scratch, d_.head_dim}, next{scratch + size, d_.head_dim};
        attend_split(q, pages(unit), d_.scale, 0, merged);
        for (size_t split = 1; split < unit.splits; ++split) {
            attend_split(q, pages(unit), d_.scale, split, next);
            for (size_t i = 0; i < q.count; ++i)
                if (split < plan_.splits_of(unit.token_of(i))) merged[i].merge(next[i]);
        }
        for (size_t i = 0; i < q.count; ++i) merged[i].finish(nullptr, output_of(unit, i, plan_.attended));
    }

    // One query of a unit in pieces, from its states of all splits.
    void merge(const AttentionUnit& unit, size_t query, SoftmaxState merged, float* rows) const {
        std::memcpy(merged.record, plan_.states(unit, 0)[query].record,
                    SoftmaxState::floats(d_.head_dim) * sizeof(float));
        for (size_t split = 1; split < plan_.splits_of(unit.token_of(query)); ++split)
            merged.merge(plan_.states(unit, split)[query]);
        merged.finish(nullptr, output_of(unit, query, rows));
    }

    void merge_states() const {
        const SoftmaxState merged{thread_scratch(SoftmaxState::floats(d_.head_dim)), d_.head_dim};
        size_t task = 0;
        for (const AttentionUnit& unit : plan_.attention.cut_units())
            for (size_t q = 0; q < unit.queries(); ++q)
                if (task++ % members_ == member_) merge(unit, q, merged, plan_.attended);
    }

    const Plan& plan_;
    const DecoderForward& a_;
    const Decoder& d_;
    const Stage& stage_;
    const size_t member_, members_;
};

void StagePart::run() const {
    const DecoderLayer* w = stage_.layer;
    switch (stage_.kind) {
        case StageKind::attention_rows:
            return share_rows(a_.tokens, d_.hidden, normalised(w->attention_norm));
        case StageKind::project:
            return project(*w, rows(a_.tokens, d_.hidden, normalised(w->attention_norm)));
        case StageKind::attend:
            return attend();
        case StageKind::merge_states:
            return merge_states();
        case StageKind::attended_rows:
            return share_rows(a_.tokens, plan_.query_width, attended());
        case StageKind::add_output:
            return add_product(w->output, rows(a_.tokens, plan_.query_width, attended()));
        case StageKind::ffn_rows:
            return share_rows(a_.tokens, d_.hidden, normalised(w->ffn_norm));
        case StageKind::gate_up:
            return gate_up(*w, rows(a_.tokens, d_.hidden, normalised(w->ffn_norm)));
        case StageKind::gated_rows:
            return share_rows(a_.tokens, d_.feed_forward, copied(plan_.gated, d_.feed_forward));
        case StageKind::add_down:
            return add_product(w->down, rows(a_.tokens, d_.feed_forward, copied(plan_.gated, d_.feed_forward)));
        case StageKind::logits_rows:
            return share_rows(a_.rows, d_.hidden, normalised(d_.norm, a_.wanted));
        case StageKind::logits:
            return logits(rows(a_.rows, d_.hidden, normalised(d_.norm, a_.wanted)));
    }
}

}  // namespace

void decoder_forward(const DecoderForward& a) {
    StepBuffers buffers;
    const Plan plan(a, buffers);
    gather_rows({a.decoder->embedding, a.ids, a.tokens, plan.x, a.threads});
    parallel_stages(plan.stages.size(), a.threads, [&](size_t stage, size_t member, size_t members) {
        StagePart(plan, plan.stages[stage], member, members).run();
    });
}

}  // namespace decodestep::DECODESTEP_ISA
