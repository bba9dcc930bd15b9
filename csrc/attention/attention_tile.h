// Absorbed attention of a few rows, each one head of one token, over one range of keys: what the operator shares out
// among threads, and what another kernel can call for the tokens and heads that it has at hand.
//
// Keys are taken in blocks of 64 and splits of 256, counted from the start of the sequence. Inside a block a score is
// one ascending sum for each 64 columns, and a column of the result one ascending sum over the keys; blocks follow each
// other with one running maximum, splits begin anew and are added in order. So a row's bits follow from its own query
// and keys, however rows are put together and splits are shared out.
#pragma once

#include <algorithm>

#include "attention/attention_partial.h"
#include "attention/attention_products.h"
#include "attention/mla_attention.h"
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
    // Among all rows [tokens, groups * group_heads] of the call.
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

    // scratch: of scratch_floats(a, rows) floats, the tile's own until it is done.
    AttentionTile(const MlaAttention& a, const AttentionRows& rows, float* scratch)
        : a_(a),
          rows_(rows),
          width_(a.kv.width / a.groups),
          pairs_(a.kr.width / 2 / a.groups),
          columns_((a.query ? a.kv.width : 0) + 2 * pairs_),
          query_(scratch),
          keys_(query_ + rows.count() * columns_),
          scores_(keys_ + kChunkColumns * kBlockKeys),
          tops_(scores_ + rows.in_group() * kBlockKeys),
          totals_(tops_ + padded(rows.count())),
          rescale_(totals_ + padded(rows.count())) {
        for (size_t r = 0; r < rows.count(); ++r) gather_query(r);
        for (size_t t = 0; t < rows.tokens; ++t) longest_ = std::max<size_t>(longest_, a.lengths[rows.token + t]);
    }

    size_t splits() const { return key_splits(longest_); }

    // One partial for each row. Rows that do not reach into the split are left empty.
    void attend(size_t split, Partials partials) {
        const size_t rows = rows_.count();
        for (size_t r = 0; r < rows; ++r) partials[r].clear();
        std::fill_n(tops_, rows, kLowest);
        std::fill_n(totals_, rows, 0.0f);
        const size_t end = std::min(longest_, (split + 1) * kSplitKeys);
        for (size_t first = split * kSplitKeys; first < end; first += kBlockKeys) {
            locate(first, std::min(kBlockKeys, end - first));
            for (row_ = 0; row_ < rows; row_ += rows_.in_group()) {
                score();
                weigh();
                with_type(a_.kv.type, [&]<CacheType type>() { sum_values<type>(partials.from(row_)); });
            }
        }
        for (size_t r = 0; r < rows; ++r) {
            partials[r].top() = tops_[r];
            partials[r].total() = totals_[r];
        }
    }

  private:
    // Registers of 16 rows may reach behind the last row.
    static constexpr size_t padded(size_t n) { return n + kLanes - 1; }

    // The columns of a row's query that meet columns of the keys, side by side, and divided by the scales of the cache.
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

    // Finds the rows of keys [first, first + n) and of as many keys behind them, or the last key's in their place.
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

    // How many keys of the block a token of the tile sees.
    size_t seen(size_t token) const {
        const size_t length = a_.lengths[rows_.token + token];
        return length <= first_ ? 0 : std::min(n_, length - first_);
    }

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

    // Scores to weights relative to the highest score so far; what came before is rescaled to it.
    void weigh() {
        const size_t rows = rows_.in_group();
        float *tops = tops_ + row_, *totals = totals_ + row_, *highest = rescale_;
        each_row([&](size_t r, float* scores, size_t n) {
            const f32x16 scale = broadcast(a_.scale);
            f32x16 top = broadcast(tops[r]);
            for (size_t j = 0; j < n; j += kLanes) {
                store(scores + j, load(scores + j) * scale);
                for (size_t i = n; i < j + kLanes; ++i) scores[i] = -__builtin_inff();
                top = max(load(scores + j), top);
            }
            highest[r] = largest(top);
        });
        for (size_t r = 0; r < rows; r += kLanes) {
            const f32x16 now = load(highest + r), change = exp(load(tops + r) - now);
            store_partial(tops + r, now, std::min<size_t>(kLanes, rows - r));
            store(rescale_ + r, change);
        }
        each_row([&](size_t r, float* scores, size_t n) {
            const f32x16 shift = broadcast(tops[r]);
            f32x16 total = broadcast(0.0f);
            for (size_t j = 0; j < n; j += kLanes) {
                const f32x16 weight = exp(load(scores + j) - shift);
                store(scores + j, weight);
                total = total + weight;
            }
            totals[r] = totals[r] * rescale_[r] + sum(total);
        });
    }

    // Calls body(row of the group, its scores, how many keys it sees).
    template <class Body>
    DECODESTEP_INLINE void each_row(Body&& body) {
        for (size_t t = 0, r = 0; t < rows_.tokens; ++t) {
            const size_t n = seen(t);
            for (size_t h = 0; h < rows_.heads; ++h, ++r) body(r, scores_ + r * kBlockKeys, n);
        }
    }

    template <CacheType type>
    void sum_values(Partials partials) {
        constexpr size_t wide = kTileVectors * kLanes;
        size_t c = 0;
        for (; c + wide <= width_; c += wide) sum_columns<type, kTileVectors>(c, kLanes, partials);
        for (; c < width_; c += kLanes) sum_columns<type, 1>(c, std::min<size_t>(kLanes, width_ - c), partials);
    }

    // Tokens that see the same keys of the block are summed together: a key that a token does not see may be NaN.
    template <CacheType type, int C>
    void sum_columns(size_t c, size_t lanes, Partials partials) {
        const size_t column = rows_.group_of(row_) * width_ + c;
        for (size_t t = 0, end; t < rows_.tokens; t = end) {
            const size_t n = seen(t), first = t * rows_.heads;
            for (end = t + 1; end < rows_.tokens && seen(end) == n;) ++end;
            if (n == 0) continue;
            for_rows((end - t) * rows_.heads, [&]<int R>(size_t r) {
                const uint8_t* const* ahead = kv_rows_ + (r == 0 ? kBlockKeys : 0);  // once for all rows
                r += first;
                add_values<type, R, C>(kv_rows_, ahead, column, lanes, scores_ + r * kBlockKeys, n, rescale_ + r,
                                       partials[r].values() + c, Partial::floats(width_));
            });
        }
    }

    const MlaAttention& a_;
    const AttentionRows rows_;
    const size_t width_, pairs_, columns_;
    float *query_, *keys_, *scores_, *tops_, *totals_, *rescale_;
    size_t longest_ = 0;
    size_t first_ = 0, n_ = 0, row_ = 0;  // the block of keys, and the first row of the group, that are being attended
    const uint8_t *kv_rows_[2 * kBlockKeys], *kr_rows_[2 * kBlockKeys];  // behind the block: those to ask for
};

}  // namespace decodestep::DECODESTEP_ISA
