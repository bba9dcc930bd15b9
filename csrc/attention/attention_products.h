// The two products of mla_attention in registers: scores, with either queries or keys in the lanes and a few of the
// other; and weighted sums of the values for a few queries.
#pragma once

#include "attention/key_block.h"
#include "core/pieces.h"

namespace decodestep::DECODESTEP_BUILD {

// The largest number of accumulators of a product, rows times vectors: twelve of AVX2's sixteen registers; with many
// registers, as many as leave room for the other factors.
constexpr int kProductRows = kManyRegisters ? 8 : kVectorRegisters >= 8 ? 6 : 2;
constexpr int kProductVectors = kManyRegisters ? 3 : 1;

// With fewer rows, more vectors: there must be enough independent sums to hide the latency of an addition. A vector
// that several rows share stays in a register as well.
constexpr int vectors_beside(int rows) {
    constexpr int registers = kVectorRegisters;
    if (rows == 1) return registers >= 8 ? 4 : 2;
    return (rows + 1) * 4 < registers ? 4 : (rows + 1) * 2 < registers ? 2 : 1;
}
constexpr int rows_beside(int vectors) {
    int rows = 1;
    while (rows < kProductRows && vectors_beside(rows + 1) >= vectors) ++rows;
    return rows;
}

// scores[r][v] += row r . each of the sixteen rows in the lanes of vector v, over the given columns, for R rows and V
// vectors.
// vectors: V arrays [columns][kLanes], vector_stride apart; row(r): the address of row r; scores: rows score_stride
// apart.
template <int R, int V, class Row>
DECODESTEP_INLINE void add_scores(const float* vectors, size_t vector_stride, const Row& row, size_t columns,
                                  float* scores, size_t score_stride) {
    f32x16 total[R][V];
    const float* rows[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        rows[r] = row(r);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) total[r][v] = broadcast(0.0f);
    }
    for (size_t c = 0; c < columns; ++c) {
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
            f32x16 lanes = load(vectors + v * vector_stride + c * kLanes);
            if constexpr (R > 1) keep_in_register(lanes);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) total[r][v] = fma(lanes, broadcast(rows[r][c]), total[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
            float* score = scores + r * score_stride + v * kLanes;
            store(score, load(score) + total[r][v]);
        }
}

struct Weights {
    const float* at;
    size_t row_stride, key_stride;
};

// sums[r][C vectors] = sums * rescale[r] + sum over n keys j of weights[r, j] * the values at row(j), for R queries.
// With C = 1 the vector may have fewer than sixteen lanes. keeps: whether the values are also written to kept: [n][C
// vectors].
template <CacheType type, int R, int C, bool keeps, class Row>
DECODESTEP_INLINE void add_values(const Row& row, size_t lanes, Weights weights, size_t n, const float* rescale,
                                  float* sums, size_t sum_stride, float* kept) {
    f32x16 total[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) total[r][c] = broadcast(0.0f);
    for (size_t j = 0; j < n; ++j) {
        const uint8_t* values = row(j);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            f32x16 value = widen<type>(values + c * kLanes * value_bytes(type), lanes);
            if constexpr (R > 1) keep_in_register(value);
            if constexpr (keeps) store(kept + (j * C + c) * kLanes, value);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
                total[r][c] =
                    fma(broadcast(weights.at[r * weights.row_stride + j * weights.key_stride]), value, total[r][c]);
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

}  // namespace decodestep::DECODESTEP_BUILD
