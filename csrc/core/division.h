// Division that rounds up.
#pragma once

#include <cstddef>

namespace decodestep {

constexpr size_t ceil_div(size_t n, size_t unit) { return (n + unit - 1) / unit; }
constexpr size_t round_up(size_t n, size_t unit) { return ceil_div(n, unit) * unit; }

}  // namespace decodestep
