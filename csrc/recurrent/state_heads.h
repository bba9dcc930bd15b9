// What operators whose states are matrices by head are given: the tokens of all rows, and the states.
#pragma once

#include <cstddef>

namespace decodestep {

// [tokens, heads, width], of which the last axis has no gaps.
struct TokenHeads {
    const float* data;
    ptrdiff_t token_stride, head_stride;

    const float* at(size_t token, size_t head) const { return data + token * token_stride + head * head_stride; }
};

// [states, heads, rows, columns], of which the last axis has no gaps.
struct StateHeads {
    float* data;
    ptrdiff_t stride, head_stride, row_stride;
    size_t heads, rows, columns;
};

// [tokens, heads, columns] without gaps, written to; null where only the states are wanted.
struct HeadResults {
    float* data;
    size_t heads, columns;

    float* at(size_t token, size_t head) const { return data + (token * heads + head) * columns; }
};

}  // namespace decodestep
