// Multi-head latent attention in a decoder's step. Rows per head are in the order (head, token), so that the rows that
// a panel of key_up or value_up multiplies are contiguous.
#pragma once

#include "decoder/stage_member.h"
#include "elementwise/rope.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr float kIndexKeyEps = 1e-6f;  // of the norm of index keys, whatever that of the model's norms

class LatentAttentionPart : public StageMember {
  public:
    explicit LatentAttentionPart(const StageMember& member)
        : StageMember(member), s_(decoder_.latent), w_(stage_.layer->latent) {}

    // The first products of the hidden state, stored without further processing.
    void compress(const Activations& x) const {
        const bool is_compressed = w_.query_down.data != nullptr;
        const LinearPanelWeight& query = is_compressed ? w_.query_down : w_.query;
        float* queries = is_compressed ? plan_.compressed : plan_.queries;
        const auto store = [&](size_t number, const LinearPanelWeight& w, const float* bias, float* out) {
            const auto [own, next] = panels_of(number);
            store_products(w, own, next, x, step_.tokens, out, w.out, 1.0f, bias);
        };
        store(0, query, w_.query_down_bias, queries);
        store(1, w_.latent, w_.latent_bias, plan_.latent);
        if (w_.indexer.is_given()) store(2, w_.indexer.key, nullptr, plan_.index_keys);
        if (!indexes()) return;
        const auto [own, next] = panels_of(3);
        const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(s_.index_heads * s_.index_width));
        store_products(w_.indexer.by_head, own, next, x, step_.tokens, plan_.index->by_head(), s_.index_heads, scale);
    }

    auto compressed_rows() const { return normalised(plan_.compressed, w_.query.in, w_.query_norm, s_.eps, false); }

    void project_queries(const Activations& x) const {
        const auto store = [&](size_t number, const LinearPanelWeight& w, float* out) {
            const auto [own, next] = panels_of(number);
            store_products(w, own, next, x, step_.tokens, out, w.out);
        };
        store(0, w_.query, plan_.queries);
        if (indexes()) store(1, w_.indexer.query, plan_.index->query());
    }

    // The part without rope of each head and token's query.
    auto head_rows() const {
        return [this](const Activations& out, size_t row) { store_row(out, row, query_of(row), s_.nope); };
    }
    Range rows_of_absorb() const { return rows_of_panels(s_.latent); }

    // The queries against the latents; the caches' rows of the tokens.
    void absorb(const Activations& x) const {
        share_.each(step_.tokens, [&](size_t t) {
            store_in_cache(t);
            if (w_.indexer.is_given()) store_index_key(t);
        });
        if (indexes())
            share_.each(step_.tokens * s_.index_heads, [&](size_t row) {
                float* const query = plan_.index->query() + row * s_.index_width;
                rotate(row / s_.index_heads, query, query);
                plan_.index->round_query(row);
            });
        share_.each(step_.tokens * decoder_.heads, [&](size_t row) {
            const size_t t = row % step_.tokens, head = row / step_.tokens;
            rotate(t, query_of(row) + s_.nope,
                   plan_.query_rope + (plan_.order.place(t) * decoder_.heads + head) * s_.rope);
        });
        multiply_heads(w_.key_up, s_.latent, x, plan_.query_latent, [&](size_t t) { return plan_.order.place(t); });
    }

    void score_keys() const {
        share_.each_dealt(tasks().score_count(), [&](size_t task) { tasks().score(task); });
    }
    void select_keys() const {
        share_.each(tasks().select_count(), [&](size_t task) { tasks().select(task); });
    }

    void attend() const {
        share_.each_dealt(plan_.latents->attend_count(), [&](size_t task) { plan_.latents->attend(task); });
    }
    void merge() const {
        share_.each(plan_.latents->merge_count(), [&](size_t task) { plan_.latents->merge(task); });
    }

    // The attention output of each head and token.
    auto latent_rows() const {
        return [this](const Activations& out, size_t row) {
            const size_t t = row % step_.tokens, head = row / step_.tokens;
            const size_t place = plan_.order.place(t);
            store_row(out, row, plan_.attended_latent + (place * decoder_.heads + head) * s_.latent, s_.latent);
        };
    }
    Range rows_of_value_up() const { return rows_of_panels(s_.value); }

    void value_up(const Activations& x) const {
        multiply_heads(w_.value_up, s_.value, x, plan_.attended, [](size_t t) { return t; });
    }

  private:
    // Whether the layer selects positions in this step.
    bool indexes() const { return plan_.index && w_.indexer.is_given(); }
    const LightningIndexerTasks& tasks() const { return plan_.index->tasks(); }

    // The rows that the share's panels of a per-head product read; `width`: outputs per head.
    Range rows_of_panels(size_t width) const {
        const Range part = panels();
        const size_t in_head = width / kPanelOutputs;
        if (part.first == part.end) return {0, 0};
        return {part.first / in_head * step_.tokens, ((part.end - 1) / in_head + 1) * step_.tokens};
    }

    // out [tokens, heads * width] = each head's rows of x times its own panels; token t's are in row row_of(t).
    template <class RowOf>
    void multiply_heads(const LinearPanelWeight& w, size_t width, const Activations& x, float* out,
                        const RowOf& row_of) const {
        const Range part = panels();
        const size_t in_head = width / kPanelOutputs;
        for (size_t i = part.first, end; i < part.end; i = end) {
            const size_t head = i / in_head;
            end = std::min(part.end, (head + 1) * in_head);
            multiply_panels(w, {i, end}, end < part.end ? NextPanels(w.panel(end), w.panel_bytes()) : panels_after(), x,
                            {head * step_.tokens, step_.tokens}, [&](size_t panel, size_t t, const float* y) {
                                std::memcpy(out + row_of(t) * w.out + panel * kPanelOutputs, y,
                                            kPanelOutputs * sizeof(float));
                            });
        }
    }

    const float* query_of(size_t row) const {
        return plan_.queries + row % step_.tokens * plan_.query_width + row / step_.tokens * decoder_.head_dim;
    }

    // Rotates the rope values of token t by its position.
    void rotate(size_t t, const float* values, float* out) const {
        const size_t at = step_.positions[t] * (s_.rope / 2);
        for (size_t i = 0; i < s_.rope; i += kLanes)
            store(out + i, rotate_pairs(load(values + i), step_.sin + at + i / 2, step_.cos + at + i / 2));
    }

    void store_in_cache(size_t t) const {
        const float* latent = plan_.latent + t * (s_.latent + s_.rope);
        const size_t position = step_.positions[t], row = position % kPagePositions;
        const size_t page = plan_.page_table_of(t)[position / kPagePositions];
        const f32x16 rms = broadcast(root_mean_square(latent, s_.latent, s_.eps));
        const ThreadScratch scratch(s_.latent + s_.rope);
        float *norm = scratch.data(), *turned = norm + s_.latent;
        for (size_t i = 0; i < s_.latent; i += kLanes)
            store(norm + i, normed(load(latent + i), rms, load(w_.latent_norm + i)));
        const size_t pitch = plan_.latent_call.kv.pitch(), at = layer_offset(pitch, page) + row * pitch;
        store_rounded(step_.cache, step_.values + at * value_bytes(step_.cache), norm, s_.latent);
        rotate(t, latent + s_.latent, turned);
        const CacheType type = plan_.latent_call.kr.type;
        store_rounded(type, step_.keys + (layer_offset(s_.rope, page) + row * s_.rope) * value_bytes(type), turned,
                      s_.rope);
    }

    void store_index_key(size_t t) const {
        const Indexer& w = w_.indexer;
        float* const key = plan_.index_keys + t * s_.index_width;
        const RowNorm norm = row_norm(key, s_.index_width, kIndexKeyEps, true);
        for (size_t i = 0; i < s_.index_width; i += kLanes)
            store(key + i, norm(load(key + i), load(w.key_norm + i)) + load(w.key_norm_bias + i));
        rotate(t, key, key);
        const size_t position = step_.positions[t], row = position % kPagePositions;
        const auto page =
            static_cast<size_t>(step_.index_table[step_.sequence[t] * step_.table_width + position / kPagePositions]);
        const size_t at = (w.cache_layer * step_.slab_pages + page) * kPagePositions + row;
        const PagedRows kept = rows_in_pages(step_.index_type, s_.index_width);
        store_rounded(kept.type, step_.index + at * kept.pitch() * value_bytes(kept.type), key, s_.index_width);
    }

    // A row of the cache, of int8 with its scale at its end. n: a multiple of sixteen.
    static void store_rounded(CacheType type, uint8_t* out, const float* values, size_t n) {
        if (type == CacheType::i8) {
            const float scale = quantise_row(values, n, false, reinterpret_cast<int8_t*>(out));
            std::memcpy(out + n, &scale, sizeof scale);
            return;
        }
        if (type == CacheType::bf16) return convert(values, n, reinterpret_cast<Bf16*>(out));
        for (size_t i = 0; i < n; i += kLanes) store_f16(reinterpret_cast<uint16_t*>(out) + i, load(values + i));
    }

    const LatentSizes& s_;
    const LatentAttention& w_;
};

}  // namespace decodestep::DECODESTEP_BUILD
