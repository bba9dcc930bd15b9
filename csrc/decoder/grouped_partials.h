// The partials of grouped-query attention in a decoder's step: what does not depend on the type of the cache.
#pragma once

#include "decoder/stage_member.h"
#include "elementwise/silu.h"

namespace decodestep::DECODESTEP_BUILD {

class GroupedPartials : public StageMember {
  public:
    explicit GroupedPartials(const StageMember& member)
        : StageMember(member), w_(stage_.layer->grouped), groups_(plan_.groups_of(w_)) {}

    // Calls body with what makes rows of the attention's outputs; the partials of divided bands are merged here unless
    // a stage has merged them.
    template <class Body>
    void with_attended(Body&& body) const {
        if (!groups_.is_divided() || plan_.merges_apart(groups_)) return body(copied(plan_.attended, attended_width()));
        const size_t values = step_.tokens * attended_width();
        const ThreadScratch scratch(values + PartialSoftmax::floats(w_.head_dim));
        float* const own = scratch.data();
        std::memcpy(own, plan_.attended, values * sizeof(float));
        merge({0, groups_.divided_tokens() * decoder_.heads}, {own + values, w_.head_dim}, own);
        body(copied(own, attended_width()));
    }

    void merge_partials() const {
        const ThreadScratch scratch(PartialSoftmax::floats(w_.head_dim));
        merge(share_.of(groups_.divided_tokens() * decoder_.heads), {scratch.data(), w_.head_dim}, plan_.attended);
    }

  protected:
    size_t attended_width() const { return plan_.attended_width(*stage_.layer); }

    // Writes the output of a token's head to `rows`, [tokens, attended_width].
    void finish(const PartialSoftmax& partial, size_t token, size_t head, float* rows) const {
        const PartialSoftmax read{partial.record, w_.head_values};
        if (w_.sinks) read.merge_sink(w_.sinks[head]);
        float* const out = rows + token * attended_width() + head * w_.head_values;
        read.finish(nullptr, out);
        if (w_.gate.data) multiply_by_gate(out, plan_.gates + token * w_.gate.out + head * w_.head_dim);
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

    // Merges the partials of queries of divided bands, in the order (token, head), each after all of its splits. A
    // query that two shares merged would be multiplied by its gate twice.
    void merge(Range queries, PartialSoftmax merged, float* rows) const {
        size_t query = queries.first;
        groups_.each_divided_token(query / decoder_.heads, ceil_div(queries.end, decoder_.heads),
                                   [&](const AttentionBand& band, size_t place) {
                                       const size_t of_next = (query / decoder_.heads + 1) * decoder_.heads;
                                       for (; query < std::min(of_next, queries.end); ++query)
                                           merge(band, place, query % decoder_.heads, merged, rows);
                                   });
    }

    void merge(const AttentionBand& band, size_t place, size_t head, PartialSoftmax merged, float* rows) const {
        const size_t t = groups_.token(place), first = groups_.first_split(t), end = groups_.end_split(t);
        const HeadGroup group = groups_.group_of(head);
        for (const AttentionSection& section : band.sections)
            for (size_t split = std::max(first, section.first_split);
                 section.has(place) && split < std::min(end, section.end_split); ++split) {
                const PartialSoftmax next = plan_.partials(
                    AttentionPlan::partial(band, group, section.row(split, place)), w_.head_dim)[head - group.head];
                split == first ? copy(next, merged) : merged.merge(next);
            }
        finish(merged, t, head, rows);
    }

    const GroupedAttention& w_;
    const AttentionPlan& groups_;
};

}  // namespace decodestep::DECODESTEP_BUILD
