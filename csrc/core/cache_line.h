// Memory that begins at a cache line: a vector that crosses two of them takes longer to load, and more so to store, and
// a copy from a page start to 16 bytes after one stalls on store forwarding.
#pragma once

#include <cstddef>

#include "core/division.h"

namespace decodestep {

constexpr size_t kCacheLine = 64;  // bytes
// Bytes that one thread's writes may take from another's cache: x86 fetches lines in pairs.
constexpr size_t kWritersApart = 128;

struct alignas(kCacheLine) CacheLine {
    float floats[kCacheLine / sizeof(float)];
};

// The number of cache lines that hold this many floats.
constexpr size_t cache_lines(size_t floats) { return ceil_div(floats * sizeof(float), kCacheLine); }

}  // namespace decodestep
