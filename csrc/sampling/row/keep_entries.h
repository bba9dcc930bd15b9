// Compacts parallel arrays to some of their entries.
#pragma once

#include <cstddef>

#include "core/compiler.h"

namespace decodestep::DECODESTEP_BUILD {

// Keeps the entries i of n for which kept(i) holds, in their order, and returns their number. It has no branch to
// mispredict; kept(i) may read the entries from i on.
template <class Kept, class... T>
DECODESTEP_INLINE size_t keep_entries(size_t n, Kept&& kept, T*... arrays) {
    size_t left = 0;
    for (size_t i = 0; i < n; ++i) {
        const bool stays = kept(i);
        ((arrays[left] = arrays[i]), ...);
        left += stays;
    }
    return left;
}

}  // namespace decodestep::DECODESTEP_BUILD
