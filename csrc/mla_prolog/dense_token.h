// How the tokens of a column product are laid out for dense tiles.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "linear/dense_tile.h"
#include "simd/rounding.h"

namespace decodestep::DECODESTEP_BUILD {

// Stores `in` values of a token as token t of the rows, and zeros up to the end of their last block.
template <class Value, class V>
void read_dense_token(DenseRows<Value> to, size_t t, const V* row, size_t in) {
    constexpr size_t stretch = DenseRows<Value>::kStretchValues;
    for (size_t k = 0; k < in; k += stretch) {
        const size_t count = std::min(stretch, in - k);
        Value* out = to.at(t, k / kBlockInputs);
        if constexpr (std::is_same_v<Value, V>)
            std::memcpy(out, row + k, count * sizeof(V));
        else
            convert(row + k, count, out);
        std::fill(out + count, out + round_up(count, kBlockInputs), Value{});
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
