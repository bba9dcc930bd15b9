// Tokens, states and results of operators whose states are matrices by head, as arguments.
#pragma once

#include "bindings/state_rows.h"
#include "recurrent/state_heads.h"

namespace decodestep {

using Heads = Array<const float, 3>;
using States = Array<float, 4>;

inline TokenHeads token_heads(const Heads& a, size_t tokens, size_t heads, size_t width) {
    require_aligned(a);
    require(a.shape(0) == tokens && a.shape(1) == heads && a.shape(2) == width, "an array has the wrong shape");
    require(last_axis_is_packed(a), "the last axis must be contiguous");
    return {a.data(), a.stride(0), a.stride(1)};
}

inline StateHeads state_heads(const States& a, size_t heads, size_t rows, size_t columns) {
    require(heads < kMaxAxis && rows < kMaxAxis && columns < kMaxAxis, "a size is out of range");
    require_aligned(a);
    require(a.shape(1) == heads && a.shape(2) == rows && a.shape(3) == columns, "state has the wrong shape");
    require(last_axis_is_packed(a), "the rows of a state must be contiguous");
    return {a.data(), a.stride(0), a.stride(1), a.stride(2), heads, rows, columns};
}

inline HeadResults head_results(const Packed<float, 3>& a, size_t tokens, size_t heads, size_t columns) {
    require_aligned(a);
    require(a.shape(0) == tokens && a.shape(1) == heads && a.shape(2) == columns, "the results have the wrong shape");
    return {a.data(), heads, columns};
}

}  // namespace decodestep
