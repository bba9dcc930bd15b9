// What a tile of `mla_attention` reads of its call: the queries of its rows, and columns of its sequence's keys.
#pragma once

#include "attention/key_block.h"
#include "attention/tile_splits.h"
#include "core/pieces.h"

namespace decodestep::DECODESTEP_BUILD {

// Columns [first, first + count) of a cache.
struct Columns {
    size_t first, count;
};

// Keys and queries are multiplied a chunk of columns at a time: calls body(first, size) for each.
constexpr size_t kChunkColumns = 64;
template <class Body>
DECODESTEP_INLINE void in_chunks(size_t columns, Body&& body) {
    for (size_t c = 0; c < columns; c += kChunkColumns) body(c, std::min(kChunkColumns, columns - c));
}

struct TileCall {
    const MlaAttention& a;
    const AttentionRows rows;
    const int64_t* const table;         // the blocks of the sequence
    const size_t width, pairs;          // of a group: values, and columns of each half of its rope keys
    const size_t latents;               // columns of the latents that queries are multiplied with: all or none
    const size_t query_columns, lanes;  // lanes: the rows of a group in whole vectors

    TileCall(const MlaAttention& a, const AttentionRows& rows)
        : a(a),
          rows(rows),
          table(a.block_table + a.sequence[rows.token] * a.blocks),
          width(a.kv.width / a.groups),
          pairs(a.kr.width / 2 / a.groups),
          latents(a.query ? a.kv.width : 0),
          query_columns(latents + 2 * pairs),
          lanes(whole_vectors(rows.in_group())) {}

    // The first column of group g of the tile: of its values, and of each half of its rope keys.
    size_t value_column(size_t g) const { return (rows.group + g) * width; }
    size_t rope_column(size_t g, size_t half) const { return half * (a.kr.width / 2) + (rows.group + g) * pairs; }

    // The columns of the caches that the tile reads.
    Columns latents_read() const {
        return latents ? Columns{0, latents} : Columns{value_column(0), rows.groups * width};
    }
    Columns ropes_read(size_t half) const { return {rope_column(0, half), rows.groups * pairs}; }

    // Copies the columns of a row's query that are multiplied with keys, contiguously, divided by the cache's scales:
    // latents, then its group's pairs of each half of the rope part.
    void gather_query(size_t r, float* out) const {
        const size_t place = rows.place_of(r, a.groups, a.heads / a.groups);
        const auto copy = [&](const float* from, const PagedRows& cache, size_t first, size_t count) {
            std::copy_n(from + first, count, out);
            if (cache.scale)
                for (size_t c = 0; c < count; ++c) out[c] /= cache.scale[first + c];
            out += count;
        };
        if (latents) copy(a.query + place * a.kv.width, a.kv, 0, latents);
        for (const size_t half : {0, 1})
            copy(a.query_rope + place * a.kr.width, a.kr, rope_column(r / rows.in_group(), half), pairs);
    }
};

}  // namespace decodestep::DECODESTEP_BUILD
