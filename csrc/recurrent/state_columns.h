// Sweeps over sixteen to sixty-four columns of a state, a matrix whose columns depend on no others.
//
// A token scales the rows, adds an outer product, and multiplies the result by a query from the left:
//
//     S[i, v] = decay[i] S[i, v] + key[i] change[v]          out[v] = sum over i of query[i] S[i, v]
//
// By a delta rule `change` follows from what the decayed state recalls for the key: recalled[v] = sum over i of
// (decay[i] key[i]) S[i, v]. Every sum is one chain of fused multiply-adds, i ascending from zero, so that its bits are
// the same whatever the columns beside it and the width of a register. A sweep gathers the next token's `recalled` while
// it updates, so that a token reads and writes each number of the state once.
#pragma once

#include <cstring>

#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr size_t kMostVectors = kManyRegisters ? 4 : 2;  // the sums of a sweep stay in registers
constexpr size_t kMostColumns = kMostVectors * kLanes;   // of a sweep

// Rows of columns in memory.
struct Columns {
    float* data;
    ptrdiff_t stride;
};

// What a token does to the rows of a state. A step of 0 means one decay for all rows.
struct RowChange {
    const float *key, *query, *decay;
    size_t decay_step;
};

template <int N>
struct Vectors {
    f32x16 v[N];

    // Of `count` columns; zeros follow.
    DECODESTEP_INLINE static Vectors from(const float* p, size_t count) {
        Vectors r;
#pragma GCC unroll 4
        for (size_t n = 0; n < N; ++n)
            r.v[n] = (n + 1) * kLanes <= count ? load(p + n * kLanes) : load_partial(p + n * kLanes, count - n * kLanes);
        return r;
    }
    DECODESTEP_INLINE static Vectors zeros() {
        Vectors r;
        for (f32x16& each : r.v) each = broadcast(0.0f);
        return r;
    }
    DECODESTEP_INLINE void put(float* p, size_t count) const {
#pragma GCC unroll 4
        for (size_t n = 0; n < N; ++n) {
            if ((n + 1) * kLanes <= count)
                store(p + n * kLanes, v[n]);
            else
                store_partial(p + n * kLanes, v[n], count - n * kLanes);
        }
    }
};

// sums += factors^T S, which is copied on the way.
template <int N>
DECODESTEP_INLINE Vectors<N> recall(Columns from, Columns to, size_t rows, const float* factors) {
    Vectors<N> sums = Vectors<N>::zeros();
    for (size_t i = 0; i < rows; ++i) {
        const f32x16 factor = broadcast(factors[i]);
        const float* row = from.data + i * from.stride;
        float* copy = to.data + i * to.stride;
#pragma GCC unroll 4
        for (size_t n = 0; n < N; ++n) {
            const f32x16 s = load(row + n * kLanes);
            sums.v[n] = fma(factor, s, sums.v[n]);
            store(copy + n * kLanes, s);
        }
    }
    return sums;
}

// Reads the state from one place and writes it to another, or the same. `next`: the following token's decayed key, or
// null where nothing is to be recalled.
template <int N, bool has_next>
DECODESTEP_INLINE Vectors<N> update(Columns from, Columns to, size_t rows, const RowChange& change,
                                    const Vectors<N>& added, const float* next, Vectors<N>& recalled) {
    Vectors<N> out = Vectors<N>::zeros(), following = Vectors<N>::zeros();
    for (size_t i = 0; i < rows; ++i) {
        const f32x16 decay = broadcast(change.decay[i * change.decay_step]);
        const f32x16 key = broadcast(change.key[i]), query = broadcast(change.query[i]);
        const f32x16 next_key = broadcast(has_next ? next[i] : 0.0f);
        const float* row = from.data + i * from.stride;
        float* target = to.data + i * to.stride;
#pragma GCC unroll 4
        for (size_t n = 0; n < N; ++n) {
            const f32x16 s = fma(key, added.v[n], decay * load(row + n * kLanes));
            store(target + n * kLanes, s);
            out.v[n] = fma(query, s, out.v[n]);
            if constexpr (has_next) following.v[n] = fma(next_key, s, following.v[n]);
        }
    }
    recalled = following;
    return out;
}

inline void copy_columns(Columns from, Columns to, size_t rows, size_t columns) {
    for (size_t i = 0; i < rows; ++i)
        std::memmove(to.data + i * to.stride, from.data + i * from.stride, columns * sizeof(float));
}

// The tokens of a row on some columns of its state. `held` has room for rows * kMostColumns floats: the state stays
// there, in the nearest cache, from the first token to the last. Tokens: the operator, which has
//
//     change(t)            the RowChange of token t, valid until that of token t + 2 is asked for; in ascending order
//     decayed_key(t)       likewise, where it recalls
//     added<N>(t, recalled)    what its key is multiplied by, in these columns
//     put<N>(t, out)       what the query read
template <int N, bool recalls, class Tokens>
void run_columns(Tokens&& of, size_t tokens, Columns from, Columns to, size_t rows, size_t columns, float* held) {
    const Columns kept{held, N * kLanes};
    if (tokens == 0) {
        if (from.data != to.data) copy_columns(from, to, rows, columns);
        return;
    }
    const bool whole = columns == N * kLanes;
    if (!whole) {
        std::memset(held, 0, rows * N * kLanes * sizeof(float));
        copy_columns(from, kept, rows, columns);
    }
    Columns source = whole ? from : kept;
    RowChange change = of.change(0);
    Vectors<N> recalled = Vectors<N>::zeros();
    if constexpr (recalls) {
        recalled = recall<N>(source, kept, rows, of.decayed_key(0));
        source = kept;
    }
    for (size_t t = 0; t + 1 < tokens; ++t) {
        const Vectors<N> added = of.template added<N>(t, recalled);
        const RowChange following = of.change(t + 1);
        const float* next = recalls ? of.decayed_key(t + 1) : nullptr;
        of.template put<N>(t, update<N, recalls>(source, kept, rows, change, added, next, recalled));
        change = following;
        source = kept;
    }
    const size_t last = tokens - 1;
    const Vectors<N> added = of.template added<N>(last, recalled);
    of.template put<N>(last, update<N, false>(source, whole ? to : kept, rows, change, added, nullptr, recalled));
    if (!whole) copy_columns(kept, to, rows, columns);
}

}  // namespace decodestep::DECODESTEP_BUILD
