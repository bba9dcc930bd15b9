// The two products of mla_attention in registers: scores of a few queries with a block of keys, and weighted sums of
// their values.
#pragma once

#include "attention/cache_type.h"
#include "simd/simd.h"

namespace decodestep::DECODESTEP_ISA {

constexpr size_t kBlockKeys = 64;

// Accumulators of a product, beside one vector of keys for each column of them.
constexpr int kTileRows = kVectorRegisters >= 32 ? 4 : 2, kTileVectors = kTileRows;

// Calls body<type>().
template <class Body>
DECODESTEP_INLINE void with_type(CacheType type, Body&& body) {
    switch (type) {
        case CacheType::f32:
            return body.template operator()<CacheType::f32>();
        case CacheType::f16:
            return body.template operator()<CacheType::f16>();
        case CacheType::bf16:
            return body.template operator()<CacheType::bf16>();
        case CacheType::i8:
            return body.template operator()<CacheType::i8>();
    }
}

// The first `lanes` values at p as float32, padded with zeros.
template <CacheType type>
DECODESTEP_INLINE f32x16 widen(const uint8_t* p, size_t lanes) {
    uint8_t copy[kLanes * value_bytes(type)];
    if (lanes < kLanes) {
        std::memset(copy, 0, sizeof copy);
        std::memcpy(copy, p, lanes * value_bytes(type));
        p = copy;
    }
    if constexpr (type == CacheType::f32) return load(reinterpret_cast<const float*>(p));
    if constexpr (type == CacheType::f16) return from_f16(p);
    if constexpr (type == CacheType::bf16) return from_bf16(p);
    if constexpr (type == CacheType::i8) return from_i8(p);
}

// scores[r][j] += query row r . key j over the given columns, for R rows and V vectors of keys. keys: [columns,
// kBlockKeys]; scores: [R, kBlockKeys].
template <int R, int V>
DECODESTEP_INLINE void add_scores(const float* query, size_t stride, const float* keys, size_t columns, float* scores) {
    f32x16 total[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) total[r][v] = broadcast(0.0f);
    for (size_t c = 0; c < columns; ++c) {
        f32x16 key[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
            key[v] = load(keys + c * kBlockKeys + v * kLanes);
            keep_in_register(key[v]);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const f32x16 q = broadcast(query[r * stride + c]);
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) total[r][v] = fma(q, key[v], total[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
            float* score = scores + r * kBlockKeys + v * kLanes;
            store(score, load(score) + total[r][v]);
        }
}

// sums[r][C vectors] = sums * rescale[r] + sum over n keys j of weights[r][j] * columns [at, at + 16 C) of rows[j], for
// R rows. Prefetches the same columns of prefetch_rows[j]. With C = 1 the vector may have only `lanes` columns.
template <CacheType type, int R, int C>
DECODESTEP_INLINE void add_values(const uint8_t* const* rows, const uint8_t* const* prefetch_rows, size_t at,
                                  size_t lanes, const float* weights, size_t n, const float* rescale, float* sums,
                                  size_t stride) {
    f32x16 total[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) total[r][c] = broadcast(0.0f);
    for (size_t j = 0; j < n; ++j) {
        prefetch(prefetch_rows[j] + at * value_bytes(type), C * kLanes * value_bytes(type));
        f32x16 value[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c)
            value[c] = widen<type>(rows[j] + (at + c * kLanes) * value_bytes(type), C > 1 ? kLanes : lanes);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const f32x16 weight = broadcast(weights[r * kBlockKeys + j]);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) total[r][c] = fma(weight, value[c], total[r][c]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        const f32x16 old = broadcast(rescale[r]);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            float* sum = sums + r * stride + c * kLanes;
            if (C > 1 || lanes == kLanes)
                store(sum, fma(load(sum), old, total[r][c]));
            else
                store_partial(sum, fma(load_partial(sum, lanes), old, total[r][c]), lanes);
        }
    }
}

// Cuts rows into pieces and calls body<R>(r) for the piece of R rows that begins at r: pieces of kTileRows, then one of
// the remaining rows.
template <int most = kTileRows, class Body>
DECODESTEP_INLINE void for_rows(size_t rows, Body&& body) {
    if constexpr (most == kTileRows) {
        size_t r = 0;
        for (; r + kTileRows <= rows; r += kTileRows) body.template operator()<kTileRows>(r);
        if (r < rows) for_rows<kTileRows - 1>(rows - r, [&]<int R>(size_t) { body.template operator()<R>(r); });
    } else if constexpr (most > 0) {
        if (rows == most) return body.template operator()<most>(size_t{0});
        for_rows<most - 1>(rows, body);
    }
}

}  // namespace decodestep::DECODESTEP_ISA
