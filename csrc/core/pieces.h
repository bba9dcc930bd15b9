// Loops over pieces of about equal sizes, and sizes as constants: kernels whose sums stay in registers are compiled for
// each number of rows.
#pragma once

#include <algorithm>
#include <cstddef>

#include "core/compiler.h"
#include "core/division.h"

namespace decodestep {

// Calls body<size>() for a size in [least, most].
template <int most, int least = 1, class Body>
DECODESTEP_INLINE void with_constant(size_t size, Body&& body) {
    if constexpr (most > least)
        if (size < most) return with_constant<most - 1, least>(size, body);
    body.template operator()<most>();
}

// Calls body(first, size) for pieces of [0, count): as few as possible of at most `most`, and about equally large,
// because small ones have too few independent sums. Sizes are multiples of sixteen, except the last, if `most` is one.
template <size_t most, class Body>
DECODESTEP_INLINE void each_piece(size_t count, Body&& body) {
    constexpr size_t multiple = most % 16 == 0 ? 16 : 1;
    size_t first = 0;
    for (size_t pieces = ceil_div(count, most); first < count; --pieces) {
        const size_t share = ceil_div(count - first, pieces);
        const size_t size = std::min(count - first, round_up(share, multiple));
        body(first, size);
        first += size;
    }
}

// The size of the smallest piece, where `count` is at least `least`.
constexpr size_t smallest_piece(size_t most, size_t least) {
    size_t smallest = most;
    for (size_t count = least; count <= least + most; ++count)
        smallest = std::min(smallest, count / ceil_div(count, most));
    return smallest;
}

// The same with the size as a constant: calls body<size>(first). count: at least `least`.
template <int most, int least = 1, class Body>
DECODESTEP_INLINE void each_constant_piece(size_t count, Body&& body) {
    each_piece<most>(count, [&](size_t first, size_t size) DECODESTEP_INLINE_LAMBDA {
        with_constant<most, static_cast<int>(smallest_piece(most, least))>(
            size, [&]<int N>() DECODESTEP_INLINE_LAMBDA { body.template operator()<N>(first); });
    });
}

}  // namespace decodestep
