// Grouped-query attention in a decoder's step.
#pragma once

#include <type_traits>

#include "attention/bf16_attention.h"
#include "decoder/grouped_partials.h"
#include "elementwise/rope.h"

namespace decodestep::DECODESTEP_BUILD {

// Cache: the type of the step's cache.
template <class Cache>
class GroupedAttentionPart : public GroupedPartials {
  public:
    explicit GroupedAttentionPart(const StageMember& member) : GroupedPartials(member) {}

    void project(const Activations& x) const {
        const auto [own, next] = panels_of(0);
        multiply_panels(
            w_.query, own, next, x, step_.tokens,
            [&](size_t i, size_t t, float* y) { store_queries(t, i * kPanelOutputs, y); },
            [&](size_t i, size_t t) { return query_at(t, i * kPanelOutputs); });
        project_to_cache(x, 1, w_.values_keys, 0);
        project_to_cache(x, 2, w_.keys, w_.values_keys.out);
        const auto [gates, after_gates] = panels_of(3);
        store_products(w_.gate, gates, after_gates, x, step_.tokens, plan_.gates, w_.gate.out);
    }

    // Normalises, rotates and stores the share's queries, keys and values, every head or all heads of a token as one
    // row; `project` stores those that have no norms.
    void norm_heads() const {
        const size_t queries = decoder_.heads, keys = w_.has_keys() ? w_.kv_heads : 0,
                     values = w_.value_norm ? keys : 0;
        const size_t rows_of_keys = w_.norms_of_rows ? std::min<size_t>(keys, 1) : keys;
        const size_t rows_of_queries = w_.norms_of_rows ? 1 : queries;
        const size_t rows = rows_of_queries + rows_of_keys + values;  // of a token
        share_.each(step_.tokens * rows, [&](size_t number) {
            const size_t t = number / rows, row = number % rows;
            if (row >= rows_of_queries + rows_of_keys) return norm_value(t, row - rows_of_queries - rows_of_keys);
            const bool is_key = row >= rows_of_queries;
            if (w_.norms_of_rows) return norm_row(t, is_key, {0, is_key ? keys : queries});
            const size_t head = is_key ? row - queries : row;
            norm_row(t, is_key, {head, head + 1});
        });
    }

    void attend() const {
        const size_t groups = groups_.groups();
        share_.each_dealt(groups_.tasks().size() * groups, [&](size_t number) {
            const AttentionTask& task = groups_.tasks()[number / groups];
            const HeadGroup group = groups_.group(number % groups);
            if (!task.band->divided) return attend_whole(task, group);
            const ThreadScratch scratch(unit_floats());
            task.band->each_step(task.first, task.end, [&](const AttentionSection& section, size_t split) {
                groups_.each_unit(section, split, group, [&](const AttentionUnit& unit) {
                    const size_t row = section.row(split, unit.first);
                    attend_unit(unit, section, split,
                                plan_.partials(AttentionPlan::partial(*task.band, group, row), w_.head_dim),
                                scratch.data());
                });
            });
        });
    }

  private:
    // Rotates sixteen outputs of a head of queries or keys, from `column` of it on, by the position of token t.
    void rotate(size_t t, bool is_key, size_t column, float* y) const {
        const size_t rope = is_key ? w_.rope : w_.query_rope;
        const size_t at = (rope * step_.rope_positions + step_.positions[t]) * (decoder_.head_dim / 2) + column / 2;
        store(y, rotate_pairs(load(y), step_.sin + at, step_.cos + at));
    }

    // The address of output `column` of a token's queries or keys.
    float* query_at(size_t t, size_t column) const { return plan_.q + t * plan_.query_width + column; }
    float* query_before_norm(size_t t, size_t column) const {
        return plan_.heads + t * (plan_.query_width + 2 * decoder_.kv_heads * decoder_.head_dim) + column;
    }
    float* key_before_norm(size_t t, size_t column) const { return query_before_norm(t, plan_.query_width + column); }
    float* value_before_norm(size_t t, size_t column) const {
        return key_before_norm(t, decoder_.kv_heads * decoder_.head_dim + column);
    }

    // The byte offset of the page that holds a token's own position, for the layer and a key-value head, and its row in
    // it.
    size_t page_of(size_t t, size_t kv_head) const {
        return cache_offset(plan_.page_table_of(t)[step_.positions[t] / kPagePositions], kv_head);
    }
    size_t cache_offset(size_t page, size_t kv_head) const {
        return plan_.page_offset(stage_.layer->cache_layer, page, kv_head, Cache::bytes(decoder_.head_dim));
    }
    size_t row_of(size_t t) const { return step_.positions[t] % kPagePositions; }

    // Normalises some heads of a token's queries or keys as one row, rotates them before or after it, and stores them.
    void norm_row(size_t t, bool is_key, Range heads) const {
        const size_t width = w_.head_dim, values = w_.head_values, count = heads.end - heads.first;
        float* y = is_key ? key_before_norm(t, heads.first * width) : query_before_norm(t, heads.first * width);
        const float* gamma = is_key ? w_.key_norm : w_.query_norm;
        if (w_.norms_after_rope)
            for (size_t i = 0; i < count * width; i += kLanes) rotate(t, is_key, i % width, y + i);
        const f32x16 rms = broadcast(root_mean_square(y, count * width, decoder_.eps, count * values));
        for (size_t head = heads.first; head < heads.end; ++head, y += width, gamma += values) {
            norm_head(y, rms, gamma);
            for (size_t i = 0; i < width; i += kLanes) {
                if (!w_.norms_after_rope) rotate(t, is_key, i, y + i);
                if (is_key)
                    Cache::store_key(step_.keys + page_of(t, head), row_of(t), i, load(y + i));
                else
                    Cache::store_query(query_at(t, head * width + i), load(y + i));
            }
        }
    }

    // Divides a head of a token's values by its root mean square, and stores it.
    void norm_value(size_t t, size_t head) const {
        const float* y = value_before_norm(t, head * w_.head_dim);
        const f32x16 rms = broadcast(root_mean_square(y, w_.head_dim, decoder_.eps, w_.head_values));
        for (size_t i = 0; i < w_.head_dim; i += kLanes)
            Cache::store_value(step_.values + page_of(t, head), w_.head_dim, row_of(t), i, load(y + i) / rms);
    }

    // Divides a head by the root mean square of its row, without the zero padding at its end.
    void norm_head(float* y, f32x16 rms, const float* gamma) const {
        for (size_t i = 0; i < w_.head_values; i += kLanes) {
            const size_t count = std::min<size_t>(kLanes, w_.head_values - i);
            store_partial(y + i, normed(load_partial(y + i, count), rms, load_partial(gamma + i, count)), count);
        }
    }

    // Stores outputs [first, first + kPanelOutputs) of the queries; beyond the last output they are zeros.
    void store_queries(size_t t, size_t first, float* y) const {
        add_bias(w_.query_bias, first, decoder_.heads * w_.head_dim, y);
        if (w_.query_norm) {
            std::memcpy(query_before_norm(t, first), y, kPanelOutputs * sizeof(float));
            return;
        }
        for (size_t i = 0; i < kPanelOutputs; i += kLanes) {
            rotate(t, false, (first + i) % w_.head_dim, y + i);
            Cache::store_query(query_at(t, first + i), load(y + i));
        }
    }

    // A weight of the sweep whose first output is number `first` of all values and keys.
    void project_to_cache(const Activations& x, size_t number, const LinearPanelWeight& w, size_t first) const {
        const auto [own, next] = panels_of(number);
        multiply_panels(w, own, next, x, step_.tokens, [&](size_t i, size_t t, float* y) {
            store_in_cache(t, first + i * kPanelOutputs, first + w.out, y);
        });
    }

    // Stores outputs [first, first + kPanelOutputs), those from `end` on left out, of all values and then all keys;
    // sixteen at a time: sixteen belong to one head.
    void store_in_cache(size_t t, size_t first, size_t end, float* y) const {
        const size_t values = w_.kv_heads * w_.head_dim;
        add_bias(w_.values_keys_bias, first, end, y);
        for (size_t i = 0; i < kPanelOutputs && first + i < end; i += kLanes) {
            const size_t output = first + i, head = output / w_.head_dim, column = output % w_.head_dim;
            const bool is_key = head >= w_.kv_heads;
            if (is_key && w_.key_norm) {
                std::memcpy(key_before_norm(t, output - values), y + i, kLanes * sizeof(float));
                continue;
            }
            if (!is_key && w_.value_norm) {
                std::memcpy(value_before_norm(t, output), y + i, kLanes * sizeof(float));
                continue;
            }
            if (is_key) rotate(t, true, column, y + i);
            if (is_key)
                Cache::store_key(step_.keys + page_of(t, head - w_.kv_heads), row_of(t), column, load(y + i));
            else
                Cache::store_value(step_.values + page_of(t, head), w_.head_dim, row_of(t), column, load(y + i));
        }
    }

    // The queries of a unit, which see what they see of the section's splits.
    Queries<float> queries_of(const AttentionUnit& unit, const AttentionSection& section) const {
        Queries<float> q;
        for (; q.count < unit.queries(); ++q.count) {
            const size_t t = groups_.token(unit.place_of(q.count));
            q.query[q.count] = query_at(t, unit.head_of(q.count) * w_.head_dim);
            q.first[q.count] = groups_.first(t);
            q.length[q.count] = std::min(groups_.length(t), section.end_split * kSplitKeys);
        }
        return q;
    }

    HeadPages<Cache> pages(const AttentionUnit& unit) const {
        const size_t at = cache_offset(0, unit.group.kv_head);
        return {step_.keys + at, step_.values + at, plan_.page_table_of(groups_.token(unit.first)), w_.head_dim,
                decoder_.head_dim};
    }

    // Floats of memory for `attend_unit`.
    size_t unit_floats() const { return std::is_same_v<Cache, Bf16Cache> ? kMaxQueries * w_.head_dim : 0; }

    // Attends to one split.
    void attend_unit(const AttentionUnit& unit, const AttentionSection& section, size_t split,
                     PartialSoftmaxes partials, float* memory) const {
        const Queries<float> q = queries_of(unit, section);
        const HeadPages<Cache> from = pages(unit);
        const ScoreRule rule{decoder_.scale, w_.score_cap};
        if constexpr (std::is_same_v<Cache, Bf16Cache>)
            decodestep::attend_bf16({q.count, q.query, q.first, q.length, from.keys, from.values, from.table,
                                     from.width, from.room, rule.scale, rule.cap, split, partials.records, memory});
        else
            attend_split(q, from, rule, split, partials);
    }

    // Attends to all splits of a band.
    void attend_whole(const AttentionTask& task, const HeadGroup& group) const {
        const AttentionBand& band = *task.band;
        const size_t size = PartialSoftmaxes::floats(group.heads, w_.head_dim);  // of a token
        const ThreadScratch scratch(unit_floats() + PartialSoftmaxes::floats(kMaxQueries, w_.head_dim) +
                                    band.tokens() * size);
        const auto merged = [&](size_t place) {
            return PartialSoftmaxes{scratch.data() + unit_floats() + (place - band.first) * size, w_.head_dim};
        };
        const PartialSoftmaxes next = merged(band.end);
        band.each_step(task.first, task.end, [&](const AttentionSection& section, size_t split) {
            groups_.each_unit(section, split, group, [&](const AttentionUnit& unit) {
                const bool begins = groups_.begins(unit, split);
                attend_unit(unit, section, split, begins ? merged(unit.first) : next, scratch.data());
                for (size_t i = 0; !begins && i < unit.queries(); ++i) {
                    const size_t t = groups_.token(unit.place_of(i));
                    const PartialSoftmax before = merged(unit.place_of(i))[i % group.heads];
                    if (split == groups_.first_split(t))
                        copy(next[i], before);
                    else if (split > groups_.first_split(t) && split < groups_.end_split(t))
                        before.merge(next[i]);
                }
            });
        });
        for (size_t place = band.first; place < band.end; ++place)
            for (size_t i = 0; i < group.heads; ++i)
                finish(merged(place)[i], groups_.token(place), group.head + i, plan_.attended);
    }
};

}  // namespace decodestep::DECODESTEP_BUILD
