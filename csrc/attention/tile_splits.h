// A part of the work of `mla_attention`: some splits of the keys for the rows of a tile.
#pragma once

#include <cstddef>

#include "attention/mla_attention.h"
#include "core/isa.h"

namespace decodestep {

// The rows of a call that share a tile: tokens [token, token + tokens), all of one sequence; groups [group, group +
// groups); and of each group heads [head, head + heads). Rows are in the order (group, token, head).
struct AttentionRows {
    size_t token, tokens, group, groups, head, heads;

    DECODESTEP_INLINE size_t in_group() const { return tokens * heads; }
    DECODESTEP_INLINE size_t count() const { return groups * in_group(); }
    DECODESTEP_INLINE size_t group_of(size_t row) const { return group + row / in_group(); }
    DECODESTEP_INLINE bool has(size_t t) const { return t >= token && t < token + tokens; }
    DECODESTEP_INLINE size_t token_of(size_t row) const { return token + row % in_group() / heads; }
    // The number of its first row among the rows of a tile that has all of its tokens, of one group if it has more.
    DECODESTEP_INLINE size_t first_in(const AttentionRows& tile) const { return (token - tile.token) * heads; }
    // The number of the row among all rows [tokens, groups * group_heads] of the call.
    DECODESTEP_INLINE size_t place_of(size_t row, size_t all_groups, size_t group_heads) const {
        return (token_of(row) * all_groups + group_of(row)) * group_heads + head + row % heads;
    }
};

// Splits [first, first + count) for rows that read the same keys there.
struct TileSection {
    AttentionRows rows;
    size_t first, count;
};

struct TileSplits {
    const MlaAttention& call;
    const AttentionRows& rows;
    // Each of some of the rows: all splits that the rows see, for each token in their order, and the rows' results are
    // written to call.out. Or one section, if there are partials: of its splits, [count, rows], each a PartialSoftmax.
    const TileSection* sections;
    size_t section_count;
    float* partials;
};

// For int8 latents with their own scales.
DECODESTEP_KERNEL(bytes, attend_byte_splits, TileSplits)

}  // namespace decodestep
