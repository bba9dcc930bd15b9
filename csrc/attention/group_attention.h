// Grouped-query attention over a paged cache: queries of the heads that share one key-value head, over one split of the
// keys. The decoder's attention.
//
// Why not attention_tile.h: here the layout of the cache (group_cache.h) is designed for this kernel, so keys and
// values are multiplied as stored, or widened in registers. mla_attention takes the caches of the Ascend operator, of
// four types and any page size; there one latent row is both key and value and serves many queries. Both share
// PartialSoftmax and its splits.
//
// With a bfloat16 cache, queries are bfloat16 and weights are rounded to it; otherwise both are float32. Sums are
// float32. Writes one PartialSoftmax per query.
// NaN: a position that a query does not see is not multiplied, so it may hold anything. Determinism: a partial depends
// only on the query and the split, and partials are merged in the order of the keys; so the bits do not depend on the
// thread that computes them or on the other queries.
#pragma once

#include <algorithm>

#include "attention/group_pages.h"
#include "core/pieces.h"
#include "elementwise/soft_cap.h"
#include "simd/exp.h"

namespace decodestep::DECODESTEP_BUILD {

// Tiles of accumulators: for scores, queries times pages; for values, queries times vectors of columns. With few
// registers, larger tiles would spill; few queries read whole lines of memory in their order, many find them in the
// cache.
constexpr size_t kMaxQueries = kManyRegisters ? 12 : kVectorRegisters >= 8 ? 6 : 2;
constexpr size_t score_pages(size_t queries) {
    if (kManyRegisters) return queries <= 5 ? kMostPages : 2;
    return queries <= 2 ? 2 : 1;
}
template <class Cache>
constexpr size_t value_queries(size_t queries) {
    return kManyRegisters || queries >= 4 ? 6 : Cache::kFewQueries;
}
constexpr size_t value_columns(size_t queries) { return kManyRegisters || queries == 1 ? 4 : queries == 2 ? 2 : 1; }

// Queries of the heads that share a key-value head, of one token or adjacent tokens. They read the same keys, each from
// its first position to its own.
template <class Factor>
struct Queries {
    size_t count = 0;  // at most kMaxQueries
    const Factor* query[kMaxQueries];
    size_t first[kMaxQueries];   // the first position that it sees
    size_t length[kMaxQueries];  // the position after its last one
};

// What a product of query and key becomes: cap * tanh(scale * product / cap), or without a cap, 0, scale * product.
struct ScoreRule {
    float scale, cap;

    DECODESTEP_INLINE f32x16 operator()(f32x16 products) const {
        const f32x16 scores = products * broadcast(scale);
        return cap > 0 ? soft_capped(scores, cap) : scores;
    }
};

// Scores of R queries, a few pages at a time: enough independent sums to hide the latency of an addition.
template <size_t R, class Cache>
void scores_of(const Queries<typename Cache::Factor>& q, const PageSequence<Cache>& order, const ScoreRule& rule,
               float (*scores)[kSplitKeys]) {
    constexpr size_t P = score_pages(R);
    static_assert(kSplitKeys / kPagePositions % P == 0, "there is room for the scores past the end");
    const size_t width = order.width;
    for (size_t i = 0; i < order.count(); i += P) {
        const uint8_t *keys[P], *prefetch_keys[P];
        f32x16 acc[R][P];
#pragma GCC unroll 4
        for (size_t p = 0; p < P; ++p) {
            keys[p] = order.keys_at(i + p);  // past the end: the last page again, whose scores nobody reads
            prefetch_keys[p] = order.at(i + p + kPrefetchPages);
#pragma GCC unroll 12
            for (size_t r = 0; r < R; ++r) acc[r][p] = broadcast(0.0f);
        }
        for (size_t d = 0; d < width; d += Cache::kGroup) {
#pragma GCC unroll 4
            for (size_t p = 0; p < P; ++p) prefetch(Cache::key_at(prefetch_keys[p], d));
            each_step<Cache>([&]<int step>() DECODESTEP_INLINE_LAMBDA {
                // Query by query: with the factors of all queries in registers, the sums would spill.
                decltype(Cache::template key<step>(keys[0], d)) key[P];
#pragma GCC unroll 4
                for (size_t p = 0; p < P; ++p) key[p] = Cache::template key<step>(keys[p], d);
#pragma GCC unroll 12
                for (size_t r = 0; r < R; ++r) {
                    const auto factor = Cache::template factor<step>(q.query[r] + d);
#pragma GCC unroll 4
                    for (size_t p = 0; p < P; ++p) acc[r][p] = Cache::add(acc[r][p], factor, key[p]);
                }
            });
        }
#pragma GCC unroll 12
        for (size_t r = 0; r < R; ++r)
#pragma GCC unroll 4
            for (size_t p = 0; p < P; ++p) store(scores[r] + (i + p) * kPagePositions, rule(acc[r][p]));
    }
}

// A query's positions of a split: [first, end).
struct Seen {
    size_t first, end;

    bool sees(size_t j) const { return j >= first && j < end; }
    Mask lanes(size_t j) const { return below(end, j) & ~below(first, j); }
    // The vectors that are seen as a whole; empty if there are none.
    Seen whole_vectors() const {
        const size_t from = round_up(first, kLanes), to = end / kLanes * kLanes;
        return {std::min(from, to), to};
    }

  private:
    // The mask of the sixteen positions from j on that are below `bound`.
    static Mask below(size_t bound, size_t j) {
        return static_cast<Mask>(j >= bound ? 0 : bound - j < kLanes ? (1u << (bound - j)) - 1 : kAllLanes);
    }
};

// Converts scores to weights, zero for positions that the query does not see; sets the partial's maximum and sum.
template <class Cache>
void weights_of(float* scores, Seen seen, size_t count, typename Cache::Factor* weights,
                const PartialSoftmax& partial) {
    std::fill_n(scores, std::min(seen.first, seen.end), kLowest);
    partial.maximum() = std::max(largest(scores, seen.end), kLowest);
    const f32x16 shift = broadcast(partial.maximum());
    f32x16 total = broadcast(0.0f);
    const auto weigh = [&](size_t j, auto&& seen_part) DECODESTEP_INLINE_LAMBDA {
        const f32x16 weight = seen_part(exp_below_limit(load(scores + j) - shift));
        Cache::store_weights(weights + j, weight);
        total = total + weight;
    };
    const auto weigh_in_part = [&](size_t j, size_t end) {
        for (; j < end; j += kLanes) weigh(j, [&](f32x16 weight) { return select(seen.lanes(j), weight); });
    };
    const Seen whole = seen.whole_vectors();
    weigh_in_part(0, whole.first);
    for (size_t j = whole.first; j < whole.end; j += kLanes) weigh(j, [](f32x16 weight) { return weight; });
    weigh_in_part(whole.end, count);
    partial.weight_sum() = sum(total);
}

// Adds the values of positions [range.first, range.end), whole groups that all R queries see, times their weights, to
// the partials' sums in C vectors of 16 columns from `column` on.
template <size_t R, size_t C, class Cache>
void weigh_values(const PageSequence<Cache>& order, size_t column, Seen range,
                  const typename Cache::Factor (*weights)[kSplitKeys], PartialSoftmaxes partials) {
    const size_t pages = order.count();
    f32x16 acc[R][C];
#pragma GCC unroll 6
    for (size_t r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (size_t c = 0; c < C; ++c) acc[r][c] = load(partials[r].values() + column + c * kLanes);
    for (size_t j = range.first; j < range.end;) {
        const size_t page = j / kPagePositions, end = std::min((page + 1) * kPagePositions, range.end);
        typename Cache::Values values(order.values_at(page), order.width, j % kPagePositions, column),
            ahead(order.at(pages + page + kPrefetchPages), order.width, j % kPagePositions, column);
        for (; j < end; j += Cache::kGroup, values.next(), ahead.next()) {
#pragma GCC unroll 4
            for (size_t c = 0; c < C; ++c) prefetch(ahead.at(c));
            each_step<Cache>([&]<int step>() DECODESTEP_INLINE_LAMBDA {
#pragma GCC unroll 4
                for (size_t c = 0; c < C; ++c) {
                    const auto value = values.template group<step>(c);
#pragma GCC unroll 6
                    for (size_t r = 0; r < R; ++r)
                        acc[r][c] = Cache::add(acc[r][c], Cache::template factor<step>(weights[r] + j), value);
                }
            });
        }
    }
#pragma GCC unroll 6
    for (size_t r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (size_t c = 0; c < C; ++c) store(partials[r].values() + column + c * kLanes, acc[r][c]);
}

// The same for one query and all columns, where a group may be seen in part.
template <class Cache>
void weigh_values_in_part(const PageSequence<Cache>& order, Seen range, const typename Cache::Factor* weights,
                          const PartialSoftmax& partial) {
    for (size_t j = range.first / Cache::kGroup * Cache::kGroup; j < range.end; j += Cache::kGroup) {
        const bool first = range.sees(j), second = range.sees(j + 1);
        const typename Cache::Values values(order.values_at(j / kPagePositions), order.width, j % kPagePositions, 0);
        for (size_t column = 0; column < order.width; column += kLanes) {
            float* sums = partial.values() + column;
            f32x16 acc = load(sums);
            each_step<Cache>([&]<int step>() DECODESTEP_INLINE_LAMBDA {
                const auto value = values.template group<step>(column / kLanes, first, second);
                acc = Cache::add(acc, Cache::template factor<step>(weights + j), value);
            });
            store(sums, acc);
        }
    }
}

// The weighted sums of the values of R queries. seen: [R], which positions of the split each query sees.
template <size_t R, class Cache>
void weigh_all_values(const PageSequence<Cache>& order, const Seen* seen,
                      const typename Cache::Factor (*weights)[kSplitKeys], PartialSoftmaxes partials) {
    constexpr size_t C = value_columns(R), G = Cache::kGroup;
    const size_t width = order.width;
    Seen common{0, ~size_t{0}};  // whole groups that all queries see
    for (size_t r = 0; r < R; ++r) {
        common.first = std::max(common.first, round_up(seen[r].first, G));
        common.end = std::min(common.end, seen[r].end / G * G);
    }
    common.end = std::max(common.first, common.end);
    for (size_t r = 0; r < R; ++r) {
        std::fill_n(partials[r].values(), width, 0.0f);
        weigh_values_in_part(order, {seen[r].first, std::min(common.first, seen[r].end)}, weights[r], partials[r]);
    }
    size_t column = 0;
    for (; column + C * kLanes <= width; column += C * kLanes)
        weigh_values<R, C>(order, column, common, weights, partials);
    for (; column < width; column += kLanes) weigh_values<R, 1>(order, column, common, weights, partials);
    for (size_t r = 0; r < R; ++r) weigh_values_in_part(order, {common.end, seen[r].end}, weights[r], partials[r]);
}

template <size_t R, class Cache>
void attend_queries(const Queries<typename Cache::Factor>& q, const HeadPages<Cache>& pages, const ScoreRule& rule,
                    size_t split, PartialSoftmaxes partials) {
    alignas(64) float scores[R][kSplitKeys];
    alignas(64) typename Cache::Factor weights[R][kSplitKeys];
    const size_t split_end = (split + 1) * kSplitKeys;
    size_t longest = 0, earliest = ~size_t{0};
    for (size_t r = 0; r < R; ++r) {
        longest = std::max(longest, q.length[r]);
        earliest = std::min(earliest, q.first[r]);
    }
    // In whole pages, so that the lane of a position does not depend on what the other queries see.
    const size_t first = std::max(split * kSplitKeys, earliest / kPagePositions * kPagePositions);
    const PageSequence<Cache> order{pages, first, std::min(longest, split_end), longest};
    const size_t count = order.count() * kPagePositions;
    scores_of<R, Cache>(q, order, rule, scores);
    Seen seen[R];
    const auto in_split = [&](size_t position) { return position <= first ? 0 : std::min(position - first, count); };
    for (size_t r = 0; r < R; ++r) {
        seen[r] = {in_split(q.first[r]), in_split(q.length[r])};
        weights_of<Cache>(scores[r], seen[r], count, weights[r], partials[r]);
    }
    size_t r = 0;
    constexpr size_t N = value_queries<Cache>(R);
    for (; r + N <= R; r += N) weigh_all_values<N>(order, seen + r, weights + r, partials.from(r));
    if constexpr (R % N != 0) weigh_all_values<R % N>(order, seen + r, weights + r, partials.from(r));
}

// Computes the partials of the queries after one split, which at least one of them reaches.
template <class Cache>
void attend_split(const Queries<typename Cache::Factor>& q, const HeadPages<Cache>& pages, const ScoreRule& rule,
                  size_t split, PartialSoftmaxes partials) {
    with_constant<kMaxQueries>(q.count, [&]<int R>() { attend_queries<R, Cache>(q, pages, rule, split, partials); });
}

}  // namespace decodestep::DECODESTEP_BUILD
