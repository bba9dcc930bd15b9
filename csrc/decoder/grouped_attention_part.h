// Grouped-query attention in a decoder's step.
#pragma once

#include "decoder/stage_member.h"
#include "elementwise/rope.h"

namespace decodestep::DECODESTEP_ISA {

class GroupedAttentionPart : public StageMember {
  public:
    using StageMember::StageMember;

    // The attention's outputs; those of units in pieces are merged here unless a stage has done so.
    auto attended() const {
        const float* rows = plan_.attended;
        const auto& cut_units = plan_.groups->cut_units();
        if (!cut_units.empty() && !plan_.merges_apart) {
            const size_t values = a_.tokens * plan_.attended_width;
            float* own = thread_scratch(values + SoftmaxState::floats(d_.head_dim));
            std::memcpy(own, plan_.attended, values * sizeof(float));
            for (const AttentionUnit& unit : cut_units)
                for (size_t q = 0; q < unit.queries(); ++q) merge(unit, q, {own + values, d_.head_dim}, own);
            rows = own;
        }
        return copied(rows, plan_.attended_width);
    }

    void project(const GroupedAttention& w, const Activations& x) const {
        const Range part = panels_of_member();
        const size_t queries = w.query.count();
        const PanelRange own{std::min(part.first, queries), std::min(part.end, queries)},
            cached{std::max(part.first, queries) - queries, std::max(part.end, queries) - queries};
        multiply_panels(
            w.query, own, cached.first < cached.end ? w.values_keys.panel(cached.first) : panel_after(), x, a_.tokens,
            [&](size_t i, size_t t, float* y) { store_queries(t, i, y); },
            [&](size_t i, size_t t) { return query_at(t, i); });
        multiply_panels(w.values_keys, cached, panel_after(), x, a_.tokens,
                        [&](size_t i, size_t t, float* y) { store_in_cache(t, i * kPanelOutputs, y); });
    }

    void attend() const {
        plan_.groups->each_task(member_, members_, [&](const AttentionTask& task) {
            const AttentionUnit& unit = plan_.groups->unit(task.unit);
            if (unit.pieces == 1) return attend_whole(unit);
            const Queries q = queries_of(unit);
            for (size_t split = task.first; split < task.end; ++split)
                attend_split(q, pages(unit), d_.scale, split, plan_.states(unit, split));
        });
    }

    void merge_states() const {
        const SoftmaxState merged{thread_scratch(SoftmaxState::floats(d_.head_dim)), d_.head_dim};
        size_t task = 0;
        for (const AttentionUnit& unit : plan_.groups->cut_units())
            for (size_t q = 0; q < unit.queries(); ++q)
                if (task++ % members_ == member_) merge(unit, q, merged, plan_.attended);
    }

  private:
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
                store_key(layer_offset(d_.head_dim, page, head - d_.kv_heads), row, column, sixteen);
            else
                store_value(layer_offset(d_.head_dim, page, head), row, column, sixteen);
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
        const size_t at = layer_offset(d_.head_dim, 0, unit.kv_head);
        return {a_.keys + at, a_.values + at, plan_.page_table_of(unit.run.first), d_.head_dim};
    }

    // Where a query's output lies in `rows`, [tokens, attended_width].
    float* output_of(const AttentionUnit& unit, size_t query, float* rows) const {
        return rows + unit.token_of(query) * plan_.attended_width + unit.head_of(query) * d_.head_dim;
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
};

}  // namespace decodestep::DECODESTEP_ISA
