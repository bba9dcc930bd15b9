// Absorbed attention of a few rows, each one head of one token, over one split of the keys.
//
// Reads the queries and the pages of one sequence; writes one SoftmaxState per row.
//
// A block of keys is read once and then multiplied as rows: with the queries in lanes for the scores, which needs no
// transposing, and with its columns in lanes for the sums.
//
// Determinism: keys are taken in blocks of 64 and splits of 256, counted from the start of the sequence. Inside a block
// a score is one ascending sum for each 64 columns, and a column of the result one ascending sum over the keys. The
// blocks of a split share one running maximum; each split starts from an empty state, and states are merged in the
// order of the keys. So a row's bits follow from its own query and keys, whatever rows share its tile or its thread.
// NaN: a key that a token does not see is not multiplied, so its NaN does not spread.
#pragma once

#include <algorithm>

#include "attention/attention_products.h"
#include "attention/key_block.h"
#include "attention/softmax_state.h"
#include "simd/transpose.h"

namespace decodestep::DECODESTEP_ISA {

constexpr size_t kChunkColumns = 64;

// Tokens [token, token + tokens), all of one sequence; groups [group, group + groups); and of each group heads
// [head, head + heads). Rows are in the order (group, token, head).
struct AttentionRows {
    size_t token, tokens, group, groups, head, heads;

    size_t in_group() const { return tokens * heads; }
    size_t count() const { return groups * in_group(); }
    size_t group_of(size_t row) const { return group + row / in_group(); }
    size_t token_of(size_t row) const { return token + row % in_group() / heads; }
    // The number of the row among all rows [tokens, groups * group_heads] of the call.
    size_t place_of(size_t row, size_t all_groups, size_t group_heads) const {
        return (token_of(row) * all_groups + group_of(row)) * group_heads + head + row % heads;
    }
};

class AttentionTile {
  public:
    static size_t scratch_floats(const MlaAttention& a, const AttentionRows& rows) {
        return rows.groups * query_floats(a, rows) + KeyColumns(a, rows.group, rows.groups).floats() +
               kBlockKeys * whole_vectors(rows.in_group()) + 2 * padded(rows.count()) + padded(rows.in_group());
    }

    // scratch: scratch_floats(a, rows) floats, which nobody else uses while the tile lives.
    AttentionTile(const MlaAttention& a, const AttentionRows& rows, float* scratch)
        : a_(a),
          rows_(rows),
          key_columns_(a, rows.group, rows.groups),
          width_(a.kv.width / a.groups),
          pairs_(a.kr.width / 2 / a.groups),
          columns_(query_columns(a)),
          lanes_(whole_vectors(rows.in_group())),
          table_(a.block_table + a.sequence[rows.token] * a.blocks),
          query_(scratch),
          keys_(query_ + rows.groups * query_floats(a, rows)),
          scores_(keys_ + key_columns_.floats()),
          maxima_(scores_ + kBlockKeys * lanes_),
          weight_sums_(maxima_ + padded(rows.count())),
          rescale_(weight_sums_ + padded(rows.count())) {
        for (size_t g = 0; g < rows.groups; ++g) gather_queries(g);
        for (size_t t = 0; t < rows.tokens; ++t) longest_ = std::max<size_t>(longest_, a.lengths[rows.token + t]);
    }

    size_t splits() const { return key_splits(longest_); }

    // Computes one state per row. The state of a row that sees no key of the split is that after no keys.
    void attend(size_t split, SoftmaxStates states) {
        const size_t rows = rows_.count();
        for (size_t r = 0; r < rows; ++r) states[r].clear();
        std::fill_n(maxima_, rows, kLowest);
        std::fill_n(weight_sums_, rows, 0.0f);
        const size_t end = std::min(longest_, (split + 1) * kSplitKeys);
        for (first_ = split * kSplitKeys; first_ < end; first_ += kBlockKeys) {
            n_ = std::min(kBlockKeys, end - first_);
            read_keys(a_, table_, key_columns_, first_, n_, keys_);
            for (size_t g = 0; g < rows_.groups; ++g) {
                score(g);
                weigh(g);
                sum_values(g, states.from(g * rows_.in_group()));
            }
        }
        for (size_t r = 0; r < rows; ++r) {
            states[r].maximum() = maxima_[r];
            states[r].weight_sum() = weight_sums_[r];
        }
    }

  private:
    // Vector loads of 16 rows may run past the last one; arrays are padded for it.
    static constexpr size_t padded(size_t n) { return n + kLanes - 1; }
    static size_t query_columns(const MlaAttention& a) {
        return (a.query ? a.kv.width : 0) + a.kr.width / 2 / a.groups * 2;
    }
    // The queries of a group: for each sixteen rows [columns][kLanes].
    static size_t query_floats(const MlaAttention& a, const AttentionRows& rows) {
        return whole_vectors(rows.in_group()) * query_columns(a);
    }

    void gather_queries(size_t g) {
        const size_t rows = rows_.in_group(), stride = key_columns_.stride;
        float* out = query_ + g * lanes_ * columns_;
        for (size_t first = 0; first < rows; first += kLanes, out += kLanes * columns_) {
            std::fill_n(keys_, kLanes * stride, 0.0f);  // where the rows lie before they are transposed
            for (size_t i = 0; i < kLanes && first + i < rows; ++i)
                gather_query(g * rows + first + i, keys_ + i * stride);
            transpose_rows(keys_, stride, columns_, out);
        }
    }

    // Copies the columns of a row's query that are multiplied with keys, side by side, divided by the cache's scales.
    void gather_query(size_t r, float* out) const {
        const size_t place = rows_.place_of(r, a_.groups, a_.heads / a_.groups);
        const auto copy = [&](const float* from, const PagedRows& cache, size_t first, size_t count) {
            for (size_t c = 0; c < count; ++c)
                *out++ = cache.scale ? from[first + c] / cache.scale[first + c] : from[first + c];
        };
        if (a_.query) copy(a_.query + place * a_.kv.width, a_.kv, 0, a_.kv.width);
        for (const size_t half : {size_t{0}, a_.kr.width / 2})
            copy(a_.query_rope + place * a_.kr.width, a_.kr, half + rows_.group_of(r) * pairs_, pairs_);
    }

    // How many keys of the current block a token of the tile sees.
    size_t seen(size_t token) const {
        const size_t length = a_.lengths[rows_.token + token];
        return length <= first_ ? 0 : std::min(n_, length - first_);
    }

    // scores_ = key . query for the keys of the current block and the rows of a group.
    void score(size_t g) {
        std::fill_n(scores_, n_ * lanes_, 0.0f);
        const float* queries = query_ + g * lanes_ * columns_;
        const auto add = [&](size_t at, size_t count) {
            for (size_t c = 0, chunk; c < count; c += chunk, queries += chunk * kLanes) {
                chunk = std::min(kChunkColumns, count - c);
                in_pieces<kScoreVectors>(lanes_ / kLanes, [&]<int V>(size_t v) {
                    in_pieces<kScoreKeys>(n_, [&]<int K>(size_t j) {
                        add_scores<K, V>(queries + v * kLanes * columns_, kLanes * columns_,
                                         keys_ + j * key_columns_.stride + at + c, key_columns_.stride, chunk,
                                         scores_ + j * lanes_ + v * kLanes, lanes_);
                    });
                });
            }
        };
        if (a_.query) add(0, a_.kv.width);
        for (const size_t at : key_columns_.rope_at) add(at + g * pairs_, pairs_);
    }

    // Turns scores into weights e^(score - maximum so far); rescale_ is the factor for the sums of the blocks before.
    void weigh(size_t g) {
        const f32x16 scale = broadcast(a_.scale);
        for (size_t i = 0; i < n_ * lanes_; i += kLanes) store(scores_ + i, load(scores_ + i) * scale);
        fill_unseen(kMinusInfinity);
        for (size_t r = 0; r < rows_.in_group(); r += kLanes) {
            float* maxima = maxima_ + g * rows_.in_group() + r;
            const f32x16 before = load(maxima);
            f32x16 highest = before;
            for (size_t j = 0; j < n_; ++j) highest = max(load(scores_ + j * lanes_ + r), highest);
            store_rows(maxima, r, highest);
            store(rescale_ + r, exp(before - highest));
            for (float* s = scores_ + r; s < scores_ + n_ * lanes_; s += lanes_) store(s, exp(load(s) - highest));
        }
        fill_unseen(0.0f);
        for (size_t r = 0; r < rows_.in_group(); r += kLanes) {
            float* sums = weight_sums_ + g * rows_.in_group() + r;
            store_rows(sums, r, load(sums) * load(rescale_ + r) + sum_of_weights(r));
        }
    }

    // Of sixteen rows from r on: the keys in the order in which `sum` adds lanes, as if each row lay in vectors of
    // keys.
    f32x16 sum_of_weights(size_t r) const {
        f32x16 total[kLanes];
        for (size_t i = 0; i < kLanes; ++i) {
            total[i] = broadcast(0.0f);
            for (size_t j = i; j < n_; j += kLanes) total[i] = total[i] + load(scores_ + j * lanes_ + r);
        }
        for (size_t half = kLanes / 2; half > 0; half /= 2)
            for (size_t i = 0; i < half; ++i) total[i] = total[i] + total[i + half];
        return total[0];
    }

    // Stores those of sixteen lanes that are rows of the group, from row r on.
    void store_rows(float* to, size_t r, f32x16 values) const {
        store_partial(to, values, std::min<size_t>(kLanes, rows_.in_group() - r));
    }

    // Sets the scores of keys that their token does not see.
    void fill_unseen(float value) {
        for (size_t t = 0; t < rows_.tokens; ++t)
            for (size_t j = seen(t); j < n_; ++j)
                std::fill_n(scores_ + j * lanes_ + t * rows_.heads, rows_.heads, value);
    }

    // Beside the sums the next block is prefetched, in equal parts: reading keys would wait for them.
    void sum_values(size_t g, SoftmaxStates states) {
        constexpr size_t wide = kSumVectors * kLanes;
        size_t c = 0, next = first_ + kBlockKeys;
        const size_t end = g == 0 ? std::min(longest_, next + kBlockKeys) : 0;
        const auto prefetch_part = [&](size_t columns) {
            for (size_t i = 0; i * width_ < columns * kBlockKeys && next < end; ++i)
                prefetch_key(a_, table_, key_columns_, next++);
        };
        for (; c + wide <= width_; c += wide) {
            prefetch_part(wide);
            sum_columns<kSumVectors>(g, c, states);
        }
        for (; c < width_; c += kLanes) {
            prefetch_part(kLanes);
            sum_columns<1>(g, c, states);
        }
    }

    // Tokens that see the same keys of the block are summed together; a key that a token does not see may be NaN, so
    // its weight of zero would not do. Lanes past the last column of the group are never read.
    template <int C>
    void sum_columns(size_t g, size_t c, SoftmaxStates states) {
        const float* values = keys_ + (rows_.group + g) * width_ - key_columns_.first_latent + c;
        for (size_t t = 0, end; t < rows_.tokens; t = end) {
            const size_t n = seen(t), first = t * rows_.heads;
            for (end = t + 1; end < rows_.tokens && seen(end) == n;) ++end;
            if (n == 0) continue;
            in_pieces<kSumQueries>((end - t) * rows_.heads, [&]<int R>(size_t r) {
                r += first;
                add_values<R, C>(values, key_columns_.stride, scores_ + r, lanes_, n, rescale_ + r,
                                 states[r].values() + c, SoftmaxState::floats(width_));
            });
        }
    }

    const MlaAttention& a_;
    const AttentionRows rows_;
    const KeyColumns key_columns_;
    const size_t width_, pairs_, columns_, lanes_;  // lanes_: the rows of a group in whole vectors
    const int64_t* const table_;                    // the blocks of the sequence
    float *query_, *keys_, *scores_, *maxima_, *weight_sums_, *rescale_;
    size_t longest_ = 0;
    size_t first_ = 0, n_ = 0;  // the current block of keys
};

}  // namespace decodestep::DECODESTEP_ISA
