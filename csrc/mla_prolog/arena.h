// Arrays of a size known at run time, one after the other in one buffer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cache_line.h"
#include "core/division.h"

namespace decodestep::DECODESTEP_BUILD {

// Hands out arrays in order, each from a cache line on. Without a buffer it only counts: the arrays are addresses that
// nobody may touch.
class Arena {
  public:
    explicit Arena(void* buffer = nullptr) : start_(reinterpret_cast<uintptr_t>(buffer)), at_(start_) {}

    template <class V>
    V* take(size_t n) {
        at_ = round_up(at_, kCacheLine);
        V* array = reinterpret_cast<V*>(at_);
        at_ += n * sizeof(V);
        return array;
    }

    // Bytes that a buffer of any alignment needs for all arrays so far.
    size_t bytes() const { return at_ - start_ + kCacheLine; }

  private:
    uintptr_t start_, at_;
};

// Two passes of place(arena): the first counts the bytes, the second hands out arrays in the memory of
// allocate(bytes). So one list of arrays gives both their sizes and their places.
template <class Allocate, class Place>
void place_arrays(Allocate&& allocate, Place&& place) {
    Arena counted;
    place(counted);
    Arena placed(allocate(counted.bytes()));
    place(placed);
}

}  // namespace decodestep::DECODESTEP_BUILD
