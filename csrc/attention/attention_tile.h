// Absorbed attention of a few rows over one split of the keys. A row is one head of one token.
//
// Reads the queries and the pages of one sequence; writes one SoftmaxState per row.
//
// A block of keys has one of the forms of `key_block.h`: for a few rows, keys lie in the lanes of the scores, otherwise
// queries (`block_scores.h`). Sums have the columns of the values in the lanes.
//
// Determinism: keys are divided into blocks of 64 and splits of 256, from the start of the sequence. Within a block a
// score is one ascending sum for each 64 columns, and a column of the result is one ascending sum over the keys. The
// blocks of a split share one running maximum; each split starts from an empty state, and states are merged in the
// order of the keys. So a row's bits depend only on its own query and keys, not on the other rows of its tile.
// NaN: a key that a token does not see is not multiplied, so its NaN does not spread.
#pragma once

#include <algorithm>

#include "attention/attention_products.h"
#include "attention/attention_rows.h"
#include "attention/block_scores.h"
#include "attention/byte_keys.h"
#include "attention/softmax_state.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr size_t kChunkColumns = 64;
constexpr size_t kFewRows = 6;  // of a group: up to this many, keys are in the lanes

class AttentionTile {
  public:
    static size_t scratch_floats(const MlaAttention& a, const AttentionRows& rows) {
        return rows.groups * query_floats(a, rows) + key_floats(a, rows) + BlockScores::floats(rows) +
               (a.kv.own_scales ? ByteKeys::floats(a.kv.width, whole_vectors(rows.in_group())) : 0);
    }

    // scratch: scratch_floats(a, rows) floats, used exclusively by the tile during its lifetime.
    AttentionTile(const MlaAttention& a, const AttentionRows& rows, float* scratch)
        : a_(a),
          rows_(rows),
          key_columns_(a, rows.group, rows.groups),
          table_(a.block_table + a.sequence[rows.token] * a.blocks),
          width_(a.kv.width / a.groups),
          pairs_(a.kr.width / 2 / a.groups),
          columns_(query_columns(a)),
          lanes_(whole_vectors(rows.in_group())),
          query_(scratch),
          keys_(query_ + rows.groups * query_floats(a, rows)),
          scores_(rows, is_few(a, rows), a.lengths, a.scale, keys_ + key_floats(a, rows)),
          bytes_(a.kv.width, lanes_, keys_ + key_floats(a, rows) + BlockScores::floats(rows)),
          next_block_(a, table_, key_columns_) {
        for (size_t g = 0; g < rows.groups; ++g) gather_queries(g);
        for (size_t r = 0; a.kv.own_scales && r < lanes_; r += kLanes) bytes_.round_queries(r, query_ + r * columns_);
        for (size_t t = 0; t < rows.tokens; ++t) longest_ = std::max<size_t>(longest_, a.lengths[rows.token + t]);
    }

    size_t splits() const { return key_splits(longest_); }

    // Computes one state per row. A row that sees no key of the split gets the empty state.
    void attend(size_t split, SoftmaxStates states) {
        next_block_.aim(split * kSplitKeys, std::min(longest_, split * kSplitKeys + kBlockKeys));
        next_block_.advance(kBlockKeys * next_block_.lines_a_key());
        for (size_t r = 0; r < rows_.count(); ++r) states[r].clear();
        scores_.begin_split();
        const size_t end = std::min(longest_, (split + 1) * kSplitKeys);
        for (size_t first = split * kSplitKeys; first < end; first += kBlockKeys) {
            begin_block({first, std::min(kBlockKeys, end - first)});
            for (size_t g = 0; g < rows_.groups; ++g) {
                if (is_few(a_, rows_))
                    score_few(g);
                else
                    score(g);
                scores_.weigh(g);
                sum_values(g, states.from(g * rows_.in_group()));
            }
        }
        scores_.finish_split(states);
    }

  private:
    // Rows with their own scales are multiplied in the same way for any number of queries.
    static bool is_few(const MlaAttention& a, const AttentionRows& rows) {
        return rows.in_group() <= kFewRows && !a.kv.own_scales;
    }
    // Float32 keys are read in place for many queries: only the values that are being summed are copied, because rows
    // at a power-of-two distance would evict each other from the first-level cache.
    static bool in_place(const MlaAttention& a, const AttentionRows& rows) {
        return !is_few(a, rows) && a.kv.type == CacheType::f32 && a.kr.type == CacheType::f32;
    }
    static size_t query_columns(const MlaAttention& a) {
        return (a.query ? a.kv.width : 0) + a.kr.width / 2 / a.groups * 2;
    }
    // The queries of a group: as rows if there are few, otherwise [columns][kLanes] for each sixteen rows.
    static size_t query_floats(const MlaAttention& a, const AttentionRows& rows) {
        return (is_few(a, rows) ? rows.in_group() : whole_vectors(rows.in_group())) * query_columns(a);
    }
    // The current keys: a chunk of their columns, or all columns as rows.
    static size_t key_floats(const MlaAttention& a, const AttentionRows& rows) {
        return is_few(a, rows) ? kChunkColumns * kBlockKeys : KeyColumns(a, rows.group, rows.groups).floats();
    }

    void gather_queries(size_t g) {
        const size_t rows = rows_.in_group(), stride = key_columns_.stride;
        float* out = query_ + g * query_floats(a_, rows_);
        if (is_few(a_, rows_)) {
            for (size_t r = 0; r < rows; ++r) gather_query(g * rows + r, out + r * columns_);
            return;
        }
        for (size_t first = 0; first < rows; first += kLanes, out += kLanes * columns_) {
            std::fill_n(keys_, kLanes * stride, 0.0f);  // holds the rows before they are transposed
            for (size_t i = 0; i < kLanes && first + i < rows; ++i)
                gather_query(g * rows + first + i, keys_ + i * stride);
            transpose_rows<float>([&](size_t i) { return keys_ + i * stride; }, columns_, out);
        }
    }

    // Copies the columns of a row's query that are multiplied with keys, contiguously, divided by the cache's scales.
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

    // Finds or reads the keys of a block.
    void begin_block(KeyRange block) {
        scores_.begin_block(block);
        const bool as_they_lie = is_few(a_, rows_) || in_place(a_, rows_);
        if (as_they_lie || a_.kv.own_scales) kv_.find(a_.kv, a_.block_size, table_, block.first, block.count);
        if (as_they_lie)
            kr_.find(a_.kr, a_.block_size, table_, block.first, block.count);
        else
            read_keys(a_, table_, key_columns_, block.first, block.count, keys_);
        if (a_.kv.own_scales) bytes_.read_scales(kv_, block.count);
        prefetch_beside();
    }

    // The next block is prefetched during the pieces of both products, in about equal parts.
    void prefetch_beside() {
        const size_t next = scores_.keys().first + kBlockKeys;
        next_block_.aim(next, std::min(longest_, next + kBlockKeys));
        const auto parts = [](size_t count, size_t most) { return (count + most - 1) / most; };
        const size_t rows = rows_.in_group(), chunks = a_.query ? parts(a_.kv.width, kChunkColumns) : 0,
                     of_scores = is_few(a_, rows_) ? chunks : chunks * parts(kBlockKeys, kProductRows),
                     of_sums = parts(width_, kLanes * static_cast<size_t>(vectors_beside(static_cast<int>(rows)))) *
                               parts(rows, kProductRows);
        lines_beside_ = parts(kBlockKeys * next_block_.lines_a_key(),
                              a_.kv.own_scales ? bytes_.pieces(rows) : rows_.groups * (of_scores + of_sums));
    }

    // The scores key . query of the current block's keys and the rows of a group.
    void score(size_t g) {
        float* const scores = scores_.cleared();
        const float* queries = query_ + g * query_floats(a_, rows_);
        const auto add = [&](const auto& key, size_t count) {
            in_chunks(count, [&](size_t c, size_t chunk) {
                // A chunk of all queries fits in the first-level cache; a chunk of keys read in place may not.
                each_constant_piece<kProductRows>(scores_.keys().count, [&]<int R>(size_t j) {
                    next_block_.advance(lines_beside_);
                    each_constant_piece<kProductVectors>(lanes_ / kLanes, [&]<int V>(size_t v) {
                        add_scores<R, V>(
                            queries + v * kLanes * columns_, kLanes * columns_,
                            [&](size_t r) { return key(j + r) + c; }, chunk, scores + j * lanes_ + v * kLanes, lanes_);
                    });
                });
                queries += chunk * kLanes;
            });
        };
        if (in_place(a_, rows_)) {
            const auto from = [](const StoredRows& rows, size_t at) {
                return [&rows, at](size_t j) { return reinterpret_cast<const float*>(rows[j]) + at; };
            };
            if (a_.query) add(from(kv_, 0), a_.kv.width);
            for (const size_t half : {size_t{0}, a_.kr.width / 2})
                add(from(kr_, half + (rows_.group + g) * pairs_), pairs_);
        } else {
            const auto from = [this, stride = key_columns_.stride](size_t at) {
                return [=, this](size_t j) { return keys_ + j * stride + at; };
            };
            if (a_.kv.own_scales)
                queries += a_.kv.width * kLanes;
            else if (a_.query)
                add(from(0), a_.kv.width);
            for (const size_t at : key_columns_.rope_at) add(from(at + g * pairs_), pairs_);
            if (a_.kv.own_scales) bytes_.add_scores(kv_, scores_.keys().count, scores, next_block_, lines_beside_);
        }
    }

    // The same with the keys in the lanes.
    void score_few(size_t g) {
        float* const scores = scores_.cleared();
        const float* queries = query_ + g * query_floats(a_, rows_);
        const auto add = [&](const StoredRows& keys, size_t at, size_t count) {
            in_chunks(count, [&](size_t c, size_t chunk) {
                keys.transpose(scores_.keys().count, at + c, chunk, keys_);
                each_constant_piece<kFewRows>(rows_.in_group(), [&]<int R>(size_t r) {
                    next_block_.advance(lines_beside_);
                    constexpr int V = vectors_beside(R);
                    for (size_t j = 0; j < scores_.keys().count; j += V * kLanes)
                        add_scores<R, V>(
                            keys_ + j * chunk, kLanes * chunk, [&](size_t i) { return queries + (r + i) * columns_; },
                            chunk, scores + r * kBlockKeys + j, kBlockKeys);
                });
                queries += chunk;
            });
        };
        if (a_.query) add(kv_, 0, a_.kv.width);
        for (const size_t half : {size_t{0}, a_.kr.width / 2}) add(kr_, half + (rows_.group + g) * pairs_, pairs_);
    }

    template <class Body>
    static void in_chunks(size_t columns, Body&& body) {
        for (size_t c = 0; c < columns; c += kChunkColumns) body(c, std::min(kChunkColumns, columns - c));
    }

    void sum_values(size_t g, SoftmaxStates states) {
        const size_t first = (rows_.group + g) * width_;
        if (in_place(a_, rows_)) {
            const auto row = [this, at = first * sizeof(float)](size_t j) { return kv_[j] + at; };
            return sum_rows<CacheType::f32, vectors_beside(kProductRows)>(row, width_, states);
        }
        if (a_.kv.own_scales) {
            bytes_.round_weights(scores_.weights(0).at, scores_.keys().count);
            return bytes_.add_values(kv_, scores_.keys().count, first, width_, rows_.in_group(), scores_.rescale(0),
                                     states, next_block_, lines_beside_);
        }
        if (!is_few(a_, rows_)) {
            const auto* values = reinterpret_cast<const uint8_t*>(keys_ + first - key_columns_.first_latent);
            const size_t stride = key_columns_.stride * sizeof(float);
            const auto row = [=](size_t j) { return values + j * stride; };
            return sum_rows<CacheType::f32, vectors_beside(kProductRows)>(row, whole_vectors(width_), states);
        }
        with_type(a_.kv.type, [&]<CacheType type>() {
            const auto row = [this, at = first * value_bytes(type)](size_t j) { return kv_[j] + at; };
            switch (vectors_beside(static_cast<int>(rows_.in_group()))) {
                case 4:
                    return sum_rows<type, 4>(row, width_, states);
                case 2:
                    return sum_rows<type, 2>(row, width_, states);
                default:
                    return sum_rows<type, 1>(row, width_, states);
            }
        });
    }

    // For keys whose values, `width` of them, are at row(j).
    template <CacheType type, int C, class Row>
    void sum_rows(const Row& row, size_t width, SoftmaxStates states) {
        constexpr int rows = rows_beside(C);
        size_t c = 0;
        for (; c + C * kLanes <= width; c += C * kLanes) sum_columns<type, rows, C>(row, c, kLanes, states);
        for (; c + kLanes <= width; c += kLanes) sum_columns<type, rows, 1>(row, c, kLanes, states);
        if (c < width) sum_columns<type, 1, 1>(row, c, width - c, states);
    }

    // Tokens that see the same keys of the block are summed together. A weight of zero would not exclude a key that a
    // token does not see, because it may be NaN.
    template <CacheType type, int most_rows, int C, class Row>
    DECODESTEP_INLINE void sum_columns(const Row& row, size_t c, size_t lanes, SoftmaxStates states) {
        const auto values = [&](size_t j) { return row(j) + c * value_bytes(type); };
        size_t copied = 0;  // keys whose values of these columns are contiguous in keys_
        for (size_t t = 0, end; t < rows_.tokens; t = end) {
            const size_t n = scores_.seen(t), first = t * rows_.heads;
            for (end = t + 1; end < rows_.tokens && scores_.seen(end) == n;) ++end;
            if (n == 0) continue;
            each_constant_piece<most_rows>((end - t) * rows_.heads, [&]<int R>(size_t r) {
                r += first;
                next_block_.advance(lines_beside_);
                const auto add = [&]<bool keeps>(const auto& row_of, float* kept) {
                    add_values<type, R, C, keeps>(row_of, lanes, scores_.weights(r), n, scores_.rescale(r),
                                                  states[r].values() + c, SoftmaxState::floats(width_), kept);
                };
                if constexpr (type == CacheType::f32 && C <= vectors_beside(kProductRows)) {
                    if (in_place(a_, rows_) && n > copied) {
                        copied = n;
                        return add.template operator()<true>(values, keys_);
                    }
                    if (in_place(a_, rows_))
                        return add.template operator()<false>(
                            [this](size_t j) { return reinterpret_cast<const uint8_t*>(keys_ + j * C * kLanes); },
                            nullptr);
                }
                add.template operator()<false>(values, nullptr);
            });
        }
    }

    const MlaAttention& a_;
    const AttentionRows rows_;
    const KeyColumns key_columns_;
    const int64_t* const table_;                    // the blocks of the sequence
    StoredRows kv_, kr_;                            // of keys that are read in place
    const size_t width_, pairs_, columns_, lanes_;  // lanes_: the rows of a group in whole vectors
    float *query_, *keys_;
    BlockScores scores_;
    ByteKeys bytes_;  // of keys with their own scales
    size_t longest_ = 0;
    KeyPrefetcher next_block_;
    size_t lines_beside_ = 0;  // cache lines of the next block to prefetch with each piece of a product
};

}  // namespace decodestep::DECODESTEP_BUILD
