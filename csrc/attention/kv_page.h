// A page of the grouped-query cache.
#pragma once

#include <cstddef>

namespace decodestep {

constexpr size_t kPagePositions = 16;  // positions of a sequence in a page

}  // namespace decodestep
