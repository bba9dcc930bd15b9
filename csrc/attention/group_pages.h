// The pages of a paged cache that grouped-query attention reads, in the order in which it reads them.
#pragma once

#include <algorithm>

#include "attention/group_cache.h"
#include "attention/partial_softmax.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr size_t kMostPages = 4;      // whose keys are multiplied at a time
constexpr size_t kPrefetchPages = 4;  // how far ahead pages are prefetched

// The pages of one sequence for one key-value head.
template <class Cache>
struct HeadPages {
    const uint8_t *keys, *values;  // of the layer and key-value head
    const int64_t* table;
    size_t width;
    size_t room;  // the columns for which a position of a page has place: width, or more

    size_t page_of(size_t position) const {
        return table[position / kPagePositions] * Cache::bytes(room) * kPagePositions;
    }
    const uint8_t* keys_at(size_t position) const { return keys + page_of(position); }
    const uint8_t* values_at(size_t position) const { return values + page_of(position); }
};

// The pages of a split of positions [first, end), in the order of reading: its keys, its values, and then, only to be
// prefetched, the keys of the next split, up to position `longest`.
template <class Cache>
class PageSequence {
  public:
    const size_t first, end, width;

    PageSequence(const HeadPages<Cache>& pages, size_t first, size_t end, size_t longest)
        : first(first), end(end), width(pages.width) {
        const size_t n = count();
        for (size_t i = 0; i < n; ++i) {
            at_[i] = pages.keys_at(first + i * kPagePositions);
            at_[n + i] = pages.values_at(first + i * kPagePositions);
        }
        for (size_t i = 0; i < kAhead; ++i)
            at_[2 * n + i] = pages.keys_at(std::min(end + i * kPagePositions, longest - 1));
    }

    size_t count() const { return ceil_div(end - first, kPagePositions); }
    const uint8_t* at(size_t i) const { return at_[i]; }
    // Past the end: the last page.
    const uint8_t* keys_at(size_t i) const { return at_[std::min(i, count() - 1)]; }
    const uint8_t* values_at(size_t i) const { return at_[count() + i]; }

  private:
    static constexpr size_t kAhead = kPrefetchPages + kMostPages;
    const uint8_t* at_[2 * kSplitKeys / kPagePositions + kAhead];
};

}  // namespace decodestep::DECODESTEP_BUILD
