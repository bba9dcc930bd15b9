// The partials of grouped-query attention in a decoder's step: what does not depend on the type of the cache.
#pragma once

#include "decoder/stage_member.h"
#include "elementwise/silu.h"

namespace decodestep::DECODESTEP_BUILD {

class GroupedPartials : public StageMember {
  public:
    explicit GroupedPartials(const StageMember& member)
        : StageMember(member), w_(stage_.layer->grouped), groups_(plan_.groups_of(w_)) {}

    // Calls body with what makes rows of the attention's outputs; the partials of divided units are merged here unless
    // a stage has merged them.
    template <class Body>
    void with_attended(Body&& body) const {
        const auto& divided_units = groups_.divided_units();
        if (divided_units.empty() || plan_.merges_apart(groups_)) return body(copied(plan_.attended, attended_width()));
        const size_t values = step_.tokens * attended_width();
        const ThreadScratch scratch(values + PartialSoftmax::floats(w_.head_dim));
        float* const own = scratch.data();
        std::memcpy(own, plan_.attended, values * sizeof(float));
        for (const AttentionUnit& unit : divided_units)
            for (size_t q = 0; q < unit.queries(); ++q) merge(unit, q, {own + values, w_.head_dim}, own);
        body(copied(own, attended_width()));
    }

    void merge_partials() const {
        const ThreadScratch scratch(PartialSoftmax::floats(w_.head_dim));
        const PartialSoftmax merged{scratch.data(), w_.head_dim};
        const Range part = share_.of(groups_.divided_queries());
        size_t first = 0;  // query of the unit
        for (const AttentionUnit& unit : groups_.divided_units()) {
            for (size_t q = 0; q < unit.queries(); ++q)
                if (first + q >= part.first && first + q < part.end) merge(unit, q, merged, plan_.attended);
            first += unit.queries();
        }
    }

  protected:
    size_t attended_width() const { return plan_.attended_width(*stage_.layer); }

    // Writes the output of a query of a unit to `rows`, [tokens, attended_width].
    void finish(const PartialSoftmax& partial, const AttentionUnit& unit, size_t query, float* rows) const {
        const PartialSoftmax read{partial.record, w_.head_values};
        const size_t head = unit.head_of(query);
        if (w_.sinks) read.merge_sink(w_.sinks[head]);
        float* const out = rows + unit.token_of(query) * attended_width() + head * w_.head_values;
        read.finish(nullptr, out);
        if (w_.gate.data) multiply_by_gate(out, plan_.gates + unit.token_of(query) * w_.gate.out + head * w_.head_dim);
    }

    void multiply_by_gate(float* values, const float* gate) const {
        for (size_t i = 0; i < w_.head_values; i += kLanes) {
            const size_t count = std::min<size_t>(kLanes, w_.head_values - i);
            store_partial(values + i, load_partial(values + i, count) * sigmoid(load_partial(gate + i, count)), count);
        }
    }

    static void copy(const PartialSoftmax& from, const PartialSoftmax& to) {
        std::memcpy(to.record, from.record, PartialSoftmax::floats(from.width) * sizeof(float));
    }

    // Merges the partials of all splits for one query of a divided unit.
    void merge(const AttentionUnit& unit, size_t query, PartialSoftmax merged, float* rows) const {
        const size_t t = unit.token_of(query), first = groups_.first_split(t);
        copy(plan_.partials(unit, first, w_.head_dim)[query], merged);
        for (size_t split = first + 1; split < groups_.end_split(t); ++split)
            merged.merge(plan_.partials(unit, split, w_.head_dim)[query]);
        finish(merged, unit, query, rows);
    }

    const GroupedAttention& w_;
    const AttentionPlan& groups_;
};

}  // namespace decodestep::DECODESTEP_BUILD
