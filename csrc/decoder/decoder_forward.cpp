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

    // The attention's outputs from the states of attend_splits().
    auto merged() const {
        return [this](const Activations& out, size_t t) {
            const size_t width = d_.head_dim;
            float* row = thread_scratch(plan_.query_width + SoftmaxState::floats(width));
            const SoftmaxState state{row + plan_.query_width, width};
            for (size_t head = 0; head < d_.heads; ++head) {
                state.clear();
                for (size_t split = 0; split < plan_.splits_of(t); ++split)
                    state.merge(plan_.states(t, split, head)[0]);
                state.finish(nullptr, row + head * width);
            }
            store_row(out, t, row, plan_.query_width);
        };
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

    // Query heads [first, first + count) of a key-value head, for the tokens of a run.
    Queries queries_of(const TokenRun& run, size_t kv_head, size_t first, size_t count) const {
        Queries q;
        for (size_t t = run.first; t < run.first + run.count; ++t)
            for (size_t h = first; h < first + count; ++h, ++q.count) {
                const size_t head = kv_head * plan_.heads_per_kv_head + h;
                q.query[q.count] = plan_.q + t * plan_.query_width + head * d_.head_dim;
                q.length[q.count] = a_.positions[t] + 1;
            }
        return q;
    }

    HeadPages pages(size_t t, size_t kv_head) const {
        const size_t at = plan_.page_offset(stage_.layer_number, 0, kv_head);
        return {a_.keys + at, a_.values + at, plan_.page_table_of(t), d_.head_dim};
    }

    // Calls body(kv_head, first, count) for query heads [first, first + count) of each key-value head, at most
    // kMaxQueries at a time.
    template <class Body>
    void each_heads(Body&& body) const {
        for (size_t kv_head = 0; kv_head < d_.kv_heads; ++kv_head)
            for (size_t h = 0; h < plan_.heads_per_kv_head; h += kMaxQueries)
                body(kv_head, h, std::min(kMaxQueries, plan_.heads_per_kv_head - h));
    }

    // Few tokens: the members share the splits of each; every member merges all of them for itself in the next stage.
    void attend_splits() const {
        size_t task = 0;
        for (size_t t = 0; t < a_.tokens; ++t)
            each_heads([&](size_t kv_head, size_t first, size_t count) {
                for (size_t split = 0; split < plan_.splits_of(t); ++split) {
                    if (task++ % members_ != member_) continue;
                    attend_split(queries_of({t, 1}, kv_head, first, count), pages(t, kv_head), d_.scale, split,
                                 plan_.states(t, split, kv_head * plan_.heads_per_kv_head + first));
                }
            });
    }

    // Many tokens: the members share runs of them. Each takes every members_-th one, since later ones see more keys.
    void attend_runs() const {
        size_t task = 0;
        for (const TokenRun& run : plan_.runs)
            each_heads([&](size_t kv_head, size_t first, size_t count) {
                if (task++ % members_ == member_) attend_run(run, kv_head, first, count);
            });
    }

    void attend_run(const TokenRun& run, size_t kv_head, size_t first, size_t count) const {
        const Queries q = queries_of(run, kv_head, first, count);
        const HeadPages where = pages(run.first, kv_head);
        const size_t width = d_.head_dim, splits = plan_.splits_of(run.first + run.count - 1);
        const SoftmaxStates states{thread_scratch(SoftmaxStates::floats(splits * q.count, width)), width};
        for (size_t split = 0; split < splits; ++split)
            attend_split(q, where, d_.scale, split, states.from(split * q.count));
        for (size_t r = 0; r < q.count; ++r) {
            const size_t t = run.first + r / count, head = kv_head * plan_.heads_per_kv_head + first + r % count;
            for (size_t split = 1; split < plan_.splits_of(t); ++split) states[r].merge(states[split * q.count + r]);
            states[r].finish(nullptr, plan_.attended + t * plan_.query_width + head * width);
        }
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
            return plan_.replicated_rows ? attend_splits() : attend_runs();
        case StageKind::attended_rows:
            return share_rows(a_.tokens, plan_.query_width, copied(plan_.attended, plan_.query_width));
        case StageKind::add_output:
            return add_product(w->output, rows(a_.tokens, plan_.query_width, merged()));
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
    static thread_local Buffers buffers;
    buffers.reset();
    const Plan plan(a, buffers);
    gather_rows({a.decoder->embedding, a.ids, a.tokens, plan.x});
    parallel_stages(plan.stages.size(), a.threads, [&](size_t stage, size_t member, size_t members) {
        StagePart(plan, plan.stages[stage], member, members).run();
    });
}

}  // namespace decodestep::DECODESTEP_ISA
