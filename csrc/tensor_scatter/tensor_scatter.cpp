#include "tensor_scatter/tensor_scatter.h"

#include <algorithm>
#include <cstring>

namespace decodestep {
namespace {

void copy_rows(uint8_t* to, ptrdiff_t to_row, const uint8_t* from, ptrdiff_t from_row, size_t rows, size_t run) {
    const auto packed = static_cast<ptrdiff_t>(run);
    if (to_row == packed && from_row == packed) {
        std::memcpy(to, from, rows * run);
        return;
    }
    for (size_t i = 0; i < rows; ++i) std::memcpy(to + i * to_row, from + i * from_row, run);
}

}  // namespace

void tensor_scatter(const TensorScatter& a) {
    if (a.steps == 0 || a.run == 0 || a.rows == 0) return;
    const auto rows = static_cast<int64_t>(a.rows);
    for (size_t b = 0; b < a.batch; ++b) {
        const auto first = static_cast<size_t>(((a.start[b] % rows) + rows) % rows);
        const size_t before_wrap = std::min(a.steps, a.rows - first);
        for (size_t o = 0; o < a.outer; ++o) {
            uint8_t* cache = a.cache + b * a.cache_batch + o * a.cache_outer;
            const uint8_t* update = a.update + b * a.update_batch + o * a.update_outer;
            copy_rows(cache + first * a.cache_row, a.cache_row, update, a.update_row, before_wrap, a.run);
            copy_rows(cache, a.cache_row, update + before_wrap * a.update_row, a.update_row, a.steps - before_wrap,
                      a.run);
        }
    }
}

}  // namespace decodestep
