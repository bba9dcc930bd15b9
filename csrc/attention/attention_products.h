// The two products of mla_attention in registers: scores of queries, one a lane, with a few keys; and weighted sums of
// the values for a few queries. Both read keys that `key_block.h` has made float32.
#pragma once

#include "simd/simd.h"

namespace decodestep::DECODESTEP_ISA {

// Accumulators of scores: keys times vectors of queries; of sums: queries times vectors of columns. Twelve registers of
// AVX2's sixteen, and with 32 registers as many as leave room for the other factors.
constexpr bool kManyAccumulators = kVectorRegisters >= 32;
constexpr int kScoreKeys = kManyAccumulators ? 8 : kVectorRegisters >= 8 ? 6 : 2;
constexpr int kScoreVectors = kManyAccumulators ? 3 : 1;
constexpr int kSumQueries = kScoreKeys, kSumVectors = kManyAccumulators ? 2 : 1;

// scores[k][v] += key k . queries v over the given columns, for K keys and V vectors of queries.
// queries: V vectors a column, query_stride apart, of [columns][kLanes]; keys: rows key_stride apart; scores: rows
// score_stride apart.
template <int K, int V>
DECODESTEP_INLINE void add_scores(const float* queries, size_t query_stride, const float* keys, size_t key_stride,
                                  size_t columns, float* scores, size_t score_stride) {
    f32x16 total[K][V];
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) total[k][v] = broadcast(0.0f);
    for (size_t c = 0; c < columns; ++c) {
        f32x16 query[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
            query[v] = load(queries + v * query_stride + c * kLanes);
            keep_in_register(query[v]);
        }
#pragma GCC unroll 8
        for (int k = 0; k < K; ++k) {
            const f32x16 key = broadcast(keys[k * key_stride + c]);
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) total[k][v] = fma(query[v], key, total[k][v]);
        }
    }
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
            float* score = scores + k * score_stride + v * kLanes;
            store(score, load(score) + total[k][v]);
        }
}

// sums[r][C vectors] = sums * rescale[r] + sum over n keys j of weights[j][r] * values[j][C vectors], for R queries.
template <int R, int C>
DECODESTEP_INLINE void add_values(const float* values, size_t value_stride, const float* weights, size_t weight_stride,
                                  size_t n, const float* rescale, float* sums, size_t sum_stride) {
    f32x16 total[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) total[r][c] = broadcast(0.0f);
    for (size_t j = 0; j < n; ++j) {
        f32x16 value[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            value[c] = load(values + j * value_stride + c * kLanes);
            keep_in_register(value[c]);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const f32x16 weight = broadcast(weights[j * weight_stride + r]);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) total[r][c] = fma(weight, value[c], total[r][c]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        const f32x16 old = broadcast(rescale[r]);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            float* sum = sums + r * sum_stride + c * kLanes;
            store(sum, fma(load(sum), old, total[r][c]));
        }
    }
}

// Cuts [first, count) into pieces and calls body<N>(its first) for a piece of N: pieces of `most`, then one of the
// rest.
template <int most, class Body>
DECODESTEP_INLINE void in_pieces(size_t count, Body&& body, size_t first = 0) {
    for (; first + most <= count; first += most) body.template operator()<most>(first);
    if constexpr (most > 1) {
        if (first < count) in_pieces<most - 1>(count, body, first);
    }
}

}  // namespace decodestep::DECODESTEP_ISA
