// Which rows of a call of mla_attention share a tile.
#pragma once

#include <cstddef>

#include "core/isa.h"

namespace decodestep::DECODESTEP_BUILD {

// Tokens [token, token + tokens), all of one sequence; groups [group, group + groups); and of each group heads
// [head, head + heads). Rows are in the order (group, token, head).
struct AttentionRows {
    size_t token, tokens, group, groups, head, heads;

    size_t in_group() const { return tokens * heads; }
    size_t count() const { return groups * in_group(); }
    size_t group_of(size_t row) const { return group + row / in_group(); }
    size_t token_of(size_t row) const { return token + row % in_group() / heads; }
    // The number of the row among all rows [tokens, groups * group_heads] of the call.
    size_t place_of(size_t row, size_t all_groups, size_t group_heads) const {
        return (token_of(row) * all_groups + group_of(row)) * group_heads + head + row % heads;
    }
};

}  // namespace decodestep::DECODESTEP_BUILD
