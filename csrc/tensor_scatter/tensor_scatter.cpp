#include "tensor_scatter/tensor_scatter.h"

#include <algorithm>
#include <cstring>

namespace decodestep {
namespace {

void copy_rows(uint8_t* to, ptrdiff_t to_stride, const uint8_t* from, ptrdiff_t from_stride, size_t rows,
               size_t row_bytes) {
    const auto packed = static_cast<ptrdiff_t>(row_bytes);
    if (to_stride == packed && from_stride == packed) {
        std::memmove(to, from, rows * row_bytes);
        return;
    }
    for (size_t i = 0; i < rows; ++i) std::memmove(to + i * to_stride, from + i * from_stride, row_bytes);
}

}  // namespace

void tensor_scatter(const TensorScatter& args) {
    if (args.steps == 0 || args.row_bytes == 0 || args.rows == 0) return;
    const auto rows = static_cast<int64_t>(args.rows);
    for (size_t b = 0; b < args.batch; ++b) {
        const auto first = static_cast<size_t>(((args.start[b] % rows) + rows) % rows);
        const size_t before_wrap = std::min(args.steps, args.rows - first);
        for (size_t o = 0; o < args.outer; ++o) {
            uint8_t* cache = args.cache + b * args.cache_batch_stride + o * args.cache_outer_stride;
            const uint8_t* update = args.update + b * args.update_batch_stride + o * args.update_outer_stride;
            copy_rows(cache + first * args.cache_row_stride, args.cache_row_stride, update, args.update_row_stride,
                      before_wrap, args.row_bytes);
            copy_rows(cache, args.cache_row_stride, update + before_wrap * args.update_row_stride,
                      args.update_row_stride, args.steps - before_wrap, args.row_bytes);
        }
    }
}

}  // namespace decodestep
