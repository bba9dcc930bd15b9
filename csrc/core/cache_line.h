// Memory that begins at a cache line: a vector that crosses two of them takes longer to load, and more so to store, and
// a copy from a page start to 16 bytes after one stalls on store forwarding.
#pragma once

#include <cstddef>

namespace decodestep {

struct alignas(64) CacheLine {
    float floats[16];
};

// The number of cache lines that hold this many floats.
constexpr size_t cache_lines(size_t floats) { return (floats + 15) / 16; }

}  // namespace decodestep
