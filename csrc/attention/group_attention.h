// Attention of the heads of one group over a paged cache of bfloat16, in splits that are added at the end.
//
// A page holds 16 positions of one group: its keys as [width / 2][16][2], so that 16 scores come of one sum of products
// of pairs without a fold, its values as [8][width][2], pairs of positions. Queries and weights are rounded to bfloat16
// too, sums are float32. A split is kSplitKeys positions of a sequence, wherever their pages lie. What it gives depends
// on the query and the split alone, and splits are added in order: how they are shared out changes no bit.
#pragma once

#include <algorithm>
#include <utility>

#include "attention/attention_partial.h"
#include "decoder/decoder_forward.h"
#include "simd/dot_products.h"
#include "simd/exp.h"
#include "simd/rounding.h"

namespace decodestep::DECODESTEP_ISA {

// Accumulators: of scores, queries times pages; of values, queries times vectors of columns.
constexpr bool kManyRegisters = kVectorRegisters >= 32;
constexpr size_t kRows = kManyRegisters ? 12 : 3, kScorePages = kManyRegisters ? 2 : 1;
constexpr size_t kValueRows = kManyRegisters ? 6 : 3, kValueColumns = kManyRegisters ? 4 : 2;

constexpr size_t kPagesAhead = 4;  // how far ahead memory is asked for

// Some queries that see the same keys, each up to its own position: heads of a group, of one token or of several.
struct Queries {
    size_t count = 0;  // up to kRows
    const Bf16* query[kRows];
    size_t length[kRows];  // how many positions each sees
};

// The pages of one sequence and group.
struct GroupPages {
    const uint16_t *keys, *values;  // of the layer and group
    const int64_t* table;
    size_t width;

    size_t page_of(size_t position) const { return table[position / kPagePositions] * width * kPagePositions; }
    const uint16_t* keys_at(size_t position) const { return keys + page_of(position); }
    const uint16_t* values_at(size_t position) const { return values + page_of(position); }
};

// The pages of positions [first, end) in the order in which they are read: the keys, the values, and the keys of what
// follows up to `longest`.
struct Reading {
    const GroupPages& pages;
    size_t first, end, longest;

    size_t count() const { return (end - first + kPagePositions - 1) / kPagePositions; }
    const uint16_t* keys_at(size_t i) const { return pages.keys_at(std::min(first + i * kPagePositions, end - 1)); }
    const uint16_t* at(size_t i) const {
        const size_t n = count();
        if (i < n) return keys_at(i);
        if (i < 2 * n) return pages.values_at(first + (i - n) * kPagePositions);
        return pages.keys_at(std::min(end + (i - 2 * n) * kPagePositions, longest - 1));
    }
};

// Scores of R queries, from a few pages at a time: enough sums to hide how long each addition takes.
template <size_t R>
void scores_of(const Queries& q, const Reading& reading, float scale, float (*scores)[kSplitKeys]) {
    constexpr size_t P = kScorePages;
    const size_t width = reading.pages.width;
    for (size_t i = 0; i < reading.count(); i += P) {
        const uint16_t *keys[P], *ahead[P];
        f32x16 acc[R][P];
#pragma GCC unroll 2
        for (size_t p = 0; p < P; ++p) {
            keys[p] = reading.keys_at(i + p);  // behind the end: any page, its scores are not read
            ahead[p] = reading.at(i + p + kPagesAhead);
#pragma GCC unroll 12
            for (size_t r = 0; r < R; ++r) acc[r][p] = broadcast(0.0f);
        }
        for (size_t d = 0; d < width; d += 2) {
            Bf16Dot::Weights key[P];
#pragma GCC unroll 2
            for (size_t p = 0; p < P; ++p) {
                prefetch(ahead[p] + d * kPagePositions);
                key[p] = Bf16Dot::weights(keys[p] + d * kPagePositions);
            }
#pragma GCC unroll 12
            for (size_t r = 0; r < R; ++r) {
                const Bf16Dot::Token pair = Bf16Dot::token(q.query[r] + d);
#pragma GCC unroll 2
                for (size_t p = 0; p < P; ++p) acc[r][p] = Bf16Dot::add(acc[r][p], pair, key[p]);
            }
        }
#pragma GCC unroll 12
        for (size_t r = 0; r < R; ++r)
#pragma GCC unroll 2
            for (size_t p = 0; p < P; ++p)
                if (i + p < reading.count()) store(scores[r] + (i + p) * kPagePositions, acc[r][p] * broadcast(scale));
    }
}

// Scores to weights, zero behind the `seen` first; also their largest and the sum.
inline void weights_of(float* scores, size_t seen, size_t count, Bf16* weights, const Partial& partial) {
    partial.top() = largest(scores, seen);
    const f32x16 shift = broadcast(partial.top());
    f32x16 total = broadcast(0.0f);
    for (size_t j = 0; j < count; j += kLanes) {
        const Mask lanes = j >= seen ? 0 : seen - j < kLanes ? (1u << (seen - j)) - 1 : kAllLanes;
        const f32x16 weight = select(lanes, exp(load(scores + j) - shift));
        store(scores + j, weight);
        total = total + weight;
    }
    store_sums(weights, scores, count);
    partial.total() = sum(total);
}

// Sums of the values, of R queries, in C columns of 16.
template <size_t R, size_t C>
void weigh_values(const Reading& reading, size_t column, const Bf16 (*weights)[kSplitKeys], Partials partials) {
    const size_t width = reading.pages.width, pages = reading.count();
    f32x16 acc[R][C];
#pragma GCC unroll 6
    for (size_t r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (size_t c = 0; c < C; ++c) acc[r][c] = broadcast(0.0f);
    for (size_t i = 0, j = 0; i < pages; ++i) {
        const uint16_t* values = reading.at(pages + i) + 2 * column;
        const uint16_t* ahead = reading.at(pages + i + kPagesAhead) + 2 * column;
        const size_t end = std::min(j + kPagePositions, reading.end - reading.first);
        for (; j < end; j += 2, values += 2 * width, ahead += 2 * width) {
            Bf16Dot::Weights value[C];
#pragma GCC unroll 4
            for (size_t c = 0; c < C; ++c) {
                prefetch(ahead + 2 * c * kLanes);
                value[c] = Bf16Dot::weights(values + 2 * c * kLanes);
            }
#pragma GCC unroll 6
            for (size_t r = 0; r < R; ++r) {
                const Bf16Dot::Token pair = Bf16Dot::token(weights[r] + j);
#pragma GCC unroll 4
                for (size_t c = 0; c < C; ++c) acc[r][c] = Bf16Dot::add(acc[r][c], pair, value[c]);
            }
        }
    }
#pragma GCC unroll 6
    for (size_t r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (size_t c = 0; c < C; ++c) store(partials[r].values() + column + c * kLanes, acc[r][c]);
}

template <size_t R>
void weigh_rows(const Reading& reading, const Bf16 (*weights)[kSplitKeys], Partials partials) {
    const size_t width = reading.pages.width;
    size_t column = 0;
    for (; column + kValueColumns * kLanes <= width; column += kValueColumns * kLanes)
        weigh_values<R, kValueColumns>(reading, column, weights, partials);
    for (; column < width; column += kLanes) weigh_values<R, 1>(reading, column, weights, partials);
}

template <size_t R>
void attend_rows(const Queries& q, const GroupPages& pages, float scale, size_t split, Partials partials) {
    alignas(64) float scores[R][kSplitKeys];
    alignas(64) Bf16 weights[R][kSplitKeys];
    const size_t first = split * kSplitKeys;
    size_t longest = 0;
    for (size_t r = 0; r < R; ++r) longest = q.length[r] > longest ? q.length[r] : longest;
    const Reading reading{pages, first, std::min(longest, first + kSplitKeys), longest};
    const size_t count = reading.count() * kPagePositions;
    scores_of<R>(q, reading, scale, scores);
    for (size_t r = 0; r < R; ++r) {
        const size_t seen = q.length[r] <= first ? 0 : q.length[r] - first;
        weights_of(scores[r], std::min(seen, count), count, weights[r], partials[r]);
    }
    size_t r = 0;
    for (; r + kValueRows <= R; r += kValueRows) weigh_rows<kValueRows>(reading, weights + r, partials.from(r));
    if constexpr (R % kValueRows != 0) weigh_rows<R % kValueRows>(reading, weights + r, partials.from(r));
}

// What each query makes of a split that begins before the longest of them ends.
template <size_t R = 1>
void attend_split(const Queries& q, const GroupPages& pages, float scale, size_t split, Partials partials) {
    if constexpr (R < kRows) {
        if (q.count > R) return attend_split<R + 1>(q, pages, scale, split, partials);
    }
    attend_rows<R>(q, pages, scale, split, partials);
}

}  // namespace decodestep::DECODESTEP_ISA
