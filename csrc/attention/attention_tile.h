// Absorbed attention of a few rows, each one head of one token, over one split of the keys.
//
// Reads the queries and the pages of one sequence; writes one SoftmaxState per row.
//
// Determinism: keys are taken in blocks of 64 and splits of 256, counted from the start of the sequence. Inside a block
// a score is one ascending sum for each 64 columns, and a column of the result one ascending sum over the keys. The
// blocks of a split share one running maximum; each split starts from an empty state, and states are merged in the
// order of the keys. So a row's bits follow from its own query and keys, whatever rows share its tile or its thread.
// NaN: a key that a token does not see is not multiplied, so its NaN does not spread.
#pragma once

#include <algorithm>

#include "attention/attention_products.h"
#include "attention/mla_attention.h"
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
        const size_t columns = (a.query ? a.kv.width : 0) + a.kr.width / a.groups;
        return rows.count() * columns + kChunkColumns * kBlockKeys + rows.in_group() * kBlockKeys +
               2 * padded(rows.count()) + padded(rows.in_group());
    }

    // scratch: scratch_floats(a, rows) floats, which nobody else uses while the tile lives.
    AttentionTile(const MlaAttention& a, const AttentionRows& rows, float* scratch)
        : a_(a),
          rows_(rows),
          width_(a.kv.width / a.groups),
          pairs_(a.kr.width / 2 / a.groups),
          columns_((a.query ? a.kv.width : 0) + 2 * pairs_),
          query_(scratch),
          keys_(query_ + rows.count() * columns_),
          scores_(keys_ + kChunkColumns * kBlockKeys),
          maxima_(scores_ + rows.in_group() * kBlockKeys),
          weight_sums_(maxima_ + padded(rows.count())),
          rescale_(weight_sums_ + padded(rows.count())) {
        for (size_t r = 0; r < rows.count(); ++r) gather_query(r);
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
        for (size_t first = split * kSplitKeys; first < end; first += kBlockKeys) {
            locate(first, std::min(kBlockKeys, end - first));
            for (row_ = 0; row_ < rows; row_ += rows_.in_group()) {
                score();
                weigh();
                with_type(a_.kv.type, [&]<CacheType type>() { sum_values<type>(states.from(row_)); });
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

    // Copies the columns of a row's query that are multiplied with keys, side by side, divided by the cache's scales.
    void gather_query(size_t r) {
        const size_t place = rows_.place_of(r, a_.groups, a_.heads / a_.groups);
        float* out = query_ + r * columns_;
        const auto copy = [&](const float* from, const PagedRows& cache, size_t first, size_t count) {
            for (size_t c = 0; c < count; ++c)
                *out++ = cache.scale ? from[first + c] / cache.scale[first + c] : from[first + c];
        };
        if (a_.query) copy(a_.query + place * a_.kv.width, a_.kv, 0, a_.kv.width);
        for (const size_t half : {size_t{0}, a_.kr.width / 2})
            copy(a_.query_rope + place * a_.kr.width, a_.kr, half + rows_.group_of(r) * pairs_, pairs_);
    }

    // Looks up where keys [first, first + n) lie, and as many keys after them, to be prefetched; past the last key of
    // the sequence, the last key stands in.
    void locate(size_t first, size_t n) {
        first_ = first;
        n_ = n;
        const int64_t* table = a_.block_table + a_.sequence[rows_.token] * a_.blocks;
        const size_t end = std::min(longest_, first + 2 * kBlockKeys) - first;
        const auto find = [&](const PagedRows& cache, const uint8_t** rows) {
            const size_t bytes = value_bytes(cache.type);
            size_t block = first / a_.block_size, row = first % a_.block_size, j = 0;
            for (; j < end; ++block, row = 0) {
                const auto* p = static_cast<const uint8_t*>(cache.data) + table[block] * cache.block_stride * bytes;
                for (; row < a_.block_size && j < end; ++row, ++j) rows[j] = p + row * cache.width * bytes;
            }
            std::fill(rows + j, rows + 2 * kBlockKeys, rows[j - 1]);
        };
        find(a_.kv, kv_rows_);
        find(a_.kr, kr_rows_);
    }

    // How many keys of the current block a token of the tile sees.
    size_t seen(size_t token) const {
        const size_t length = a_.lengths[rows_.token + token];
        return length <= first_ ? 0 : std::min(n_, length - first_);
    }

    // scores_ = query . key for the rows of the current group and the keys of the current block.
    void score() {
        std::fill_n(scores_, rows_.in_group() * kBlockKeys, 0.0f);
        const float* query = query_ + row_ * columns_;
        const auto add = [&](const PagedRows& cache, const uint8_t* const* rows, size_t first, size_t count) {
            for (size_t c = 0, chunk; c < count; c += chunk, query += chunk) {
                chunk = std::min(kChunkColumns, count - c);
                with_type(cache.type, [&]<CacheType type>() {
                    transpose_rows<CacheValue<type>>(rows, rows + kBlockKeys, n_, first + c, chunk, keys_, kBlockKeys);
                });
                for_rows(rows_.in_group(), [&]<int R>(size_t r) { score_rows<R>(query, r, chunk); });
            }
        };
        if (a_.query) add(a_.kv, kv_rows_, 0, a_.kv.width);
        for (const size_t half : {size_t{0}, a_.kr.width / 2})
            add(a_.kr, kr_rows_, half + rows_.group_of(row_) * pairs_, pairs_);
    }

    template <int R>
    void score_rows(const float* query, size_t r, size_t columns) {
        constexpr size_t wide = kTileVectors * kLanes;
        for (size_t j = 0; j < n_; j += wide)
            add_scores<R, kTileVectors>(query + r * columns_, columns_, keys_ + j, columns,
                                        scores_ + r * kBlockKeys + j);
    }

    // Turns scores into weights e^(score - maximum so far); rescale_ is the factor for the sums of the blocks before.
    void weigh() {
        const size_t rows = rows_.in_group();
        float *maxima = maxima_ + row_, *weight_sums = weight_sums_ + row_, *highest = rescale_;
        each_row([&](size_t r, float* scores, size_t n) {
            const f32x16 scale = broadcast(a_.scale);
            f32x16 top = broadcast(maxima[r]);
            for (size_t j = 0; j < n; j += kLanes) {
                store(scores + j, load(scores + j) * scale);
                for (size_t i = n; i < j + kLanes; ++i) scores[i] = -__builtin_inff();
                top = max(load(scores + j), top);
            }
            highest[r] = largest(top);
        });
        for (size_t r = 0; r < rows; r += kLanes) {
            const f32x16 now = load(highest + r), change = exp(load(maxima + r) - now);
            store_partial(maxima + r, now, std::min<size_t>(kLanes, rows - r));
            store(rescale_ + r, change);
        }
        each_row([&](size_t r, float* scores, size_t n) {
            const f32x16 shift = broadcast(maxima[r]);
            f32x16 total = broadcast(0.0f);
            for (size_t j = 0; j < n; j += kLanes) {
                const f32x16 weight = exp(load(scores + j) - shift);
                store(scores + j, weight);
                total = total + weight;
            }
            weight_sums[r] = weight_sums[r] * rescale_[r] + sum(total);
        });
    }

    // Calls body(row of the current group, its scores, how many keys it sees).
    template <class Body>
    DECODESTEP_INLINE void each_row(Body&& body) {
        for (size_t t = 0, r = 0; t < rows_.tokens; ++t) {
            const size_t n = seen(t);
            for (size_t h = 0; h < rows_.heads; ++h, ++r) body(r, scores_ + r * kBlockKeys, n);
        }
    }

    template <CacheType type>
    void sum_values(SoftmaxStates states) {
        constexpr size_t wide = kTileVectors * kLanes;
        size_t c = 0;
        for (; c + wide <= width_; c += wide) sum_columns<type, kTileVectors>(c, kLanes, states);
        for (; c < width_; c += kLanes) sum_columns<type, 1>(c, std::min<size_t>(kLanes, width_ - c), states);
    }

    // Tokens that see the same keys of the block are summed together; a key that a token does not see may be NaN, so
    // its weight of zero would not do.
    template <CacheType type, int C>
    void sum_columns(size_t c, size_t lanes, SoftmaxStates states) {
        const size_t column = rows_.group_of(row_) * width_ + c;
        for (size_t t = 0, end; t < rows_.tokens; t = end) {
            const size_t n = seen(t), first = t * rows_.heads;
            for (end = t + 1; end < rows_.tokens && seen(end) == n;) ++end;
            if (n == 0) continue;
            for_rows((end - t) * rows_.heads, [&]<int R>(size_t r) {
                // The first piece of rows prefetches the next block; for the others "prefetch" what is read anyway.
                const uint8_t* const* prefetch_rows = kv_rows_ + (r == 0 ? kBlockKeys : 0);
                r += first;
                add_values<type, R, C>(kv_rows_, prefetch_rows, column, lanes, scores_ + r * kBlockKeys, n,
                                       rescale_ + r, states[r].values() + c, SoftmaxState::floats(width_));
            });
        }
    }

    const MlaAttention& a_;
    const AttentionRows rows_;
    const size_t width_, pairs_, columns_;
    float *query_, *keys_, *scores_, *maxima_, *weight_sums_, *rescale_;
    size_t longest_ = 0;
    size_t first_ = 0, n_ = 0, row_ = 0;  // the current block of keys, and the first row of the current group
    const uint8_t *kv_rows_[2 * kBlockKeys], *kr_rows_[2 * kBlockKeys];  // of the block, then those to prefetch
};

}  // namespace decodestep::DECODESTEP_ISA
