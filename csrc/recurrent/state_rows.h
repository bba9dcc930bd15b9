// Rows of tokens that lie one after the other. Each reads one of many states and writes one, which may be the same.
#pragma once

#include <cstddef>
#include <cstdint>

namespace decodestep {

struct StateRows {
    size_t count;
    const int64_t* starts;          // [count + 1]: row b has the tokens from starts[b] to starts[b + 1] - 1
    const int64_t *read, *written;  // [count]: the numbers of the states; no row writes what another reads or writes

    size_t first(size_t row) const { return static_cast<size_t>(starts[row]); }
    size_t tokens(size_t row) const { return static_cast<size_t>(starts[row + 1] - starts[row]); }
};

}  // namespace decodestep
