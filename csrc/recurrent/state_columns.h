// Sweeps over sixteen to sixty-four columns of a state, a matrix whose columns depend on no others.
//
// A token scales the rows, adds an outer product, and multiplies the result by a query from the left:
//
//     S[i, v] = decay[i] S[i, v] + key[i] change[v]          out[v] = sum over i of query[i] S[i, v]
//
// By a delta rule `change` follows from what the decayed state recalls for the key: recalled[v] = sum over i of
// (decay[i] key[i]) S[i, v]. Every sum is one chain of fused multiply-adds, i ascending from zero, so that its bits are
// the same whatever the columns beside it and the width of a register. A sweep gathers the next token's `recalled`
// while it updates, so that a token reads and writes each number of the state once.
#pragma once

#include <algorithm>
#include <cstring>

#include "core/pieces.h"
#include "core/thread_scratch.h"
#include "recurrent/state_heads.h"
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
            r.v[n] =
                (n + 1) * kLanes <= count ? load(p + n * kLanes) : load_partial(p + n * kLanes, count - n * kLanes);
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

// A task: the tokens of a row, for one head and some columns of its state.
struct HeadColumns {
    size_t first_token, tokens, head, column, columns;
};

// held: room for `rows` rows of N vectors. The state stays there, in the nearest cache, from the first token to the
// last.
template <int N, class Tokens>
void run_columns(Tokens& of, const HeadColumns& at, Columns from, Columns to, size_t rows, float* held) {
    const Columns kept{held, N * kLanes};
    if (at.tokens == 0) {
        if (from.data != to.data) copy_columns(from, to, rows, at.columns);
        return;
    }
    const bool whole = at.columns == N * kLanes;
    if (!whole) {
        std::memset(held, 0, rows * N * kLanes * sizeof(float));
        copy_columns(from, kept, rows, at.columns);
    }
    Columns source = whole ? from : kept;
    RowChange change = of.change(0);
    Vectors<N> recalled = Vectors<N>::zeros();
    if constexpr (Tokens::recalls) {
        recalled = recall<N>(source, kept, rows, of.decayed_key(0));
        source = kept;
    }
    const size_t last = at.tokens - 1;
    for (size_t t = 0; t < last; ++t) {
        const Vectors<N> added = of.added(t, recalled);
        const RowChange following = of.change(t + 1);
        of.put(t, update<N, Tokens::recalls>(source, kept, rows, change, added, of.decayed_key(t + 1), recalled));
        change = following;
        source = kept;
    }
    const Vectors<N> added = of.added(last, recalled);
    of.put(last, update<N, false>(source, whole ? to : kept, rows, change, added, nullptr, recalled));
    if (!whole) copy_columns(kept, to, rows, at.columns);
}

// The tasks of a call: for every row and head the blocks of columns. Args: a kernel's, with `state` and `rows`.
inline size_t column_blocks(const StateHeads& state) { return ceil_div(state.columns, kMostColumns); }

template <class Args>
size_t head_tasks(const Args& args) {
    return args.rows.count * args.state.heads * column_blocks(args.state);
}

// Runs one of them. Tokens: what the call's tokens do, for a task:
//
//     recalls                   whether `added` needs what the state recalls
//     Tokens(args, at, memory)  memory: Tokens::floats(args) floats
//     change(t)                 the RowChange of token t; asked for in ascending order, valid until that of t + 2 is
//     decayed_key(t)            likewise
//     added(t, recalled)        what the key is multiplied by
//     put(t, out)               takes what the query has read
template <class Tokens, class Args>
void run_head_task(const Args& args, size_t task) {
    const StateHeads& state = args.state;
    const size_t blocks = column_blocks(state), held = state.rows * kMostColumns;
    const size_t row = task / blocks / state.heads, column = task % blocks * kMostColumns;
    const HeadColumns at{args.rows.first(row), args.rows.tokens(row), task / blocks % state.heads, column,
                         std::min(kMostColumns, state.columns - column)};
    const auto columns = [&](const int64_t* slots) {
        return Columns{state.data + slots[row] * state.stride + at.head * state.head_stride + column, state.row_stride};
    };
    const ThreadScratch scratch(held + Tokens::floats(args));
    Tokens of(args, at, scratch.data() + held);
    with_constant<kMostVectors>(ceil_div(at.columns, kLanes), [&]<int N>() {
        run_columns<N>(of, at, columns(args.rows.read), columns(args.rows.written), state.rows, scratch.data());
    });
}

}  // namespace decodestep::DECODESTEP_BUILD
