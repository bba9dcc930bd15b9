#include "tensor_scatter/tensor_scatter.h"

#include "bindings/bindings.h"

namespace decodestep {

void bind_tensor_scatter(nb::module_& m) {
    m.def(
        "tensor_scatter",
        [](Array<uint8_t, 4> cache, Array<const uint8_t, 4> update, Ids start) {
            const size_t row_bytes = cache.shape(3);
            require(update.shape(0) == cache.shape(0) && update.shape(1) == cache.shape(1) &&
                        update.shape(2) <= cache.shape(2) && update.shape(3) == row_bytes,
                    "update must have the shape of the cache, with at most as many rows");
            require_aligned(start);
            require(start.shape(0) == cache.shape(0), "start must have one item for each batch row");
            require(update.size() == 0 || row_bytes == 1 || (cache.stride(3) == 1 && update.stride(3) == 1),
                    "the rows of cache and update must be contiguous");
            const std::vector<int64_t> first_rows = copy_of(start);
            const TensorScatter args{.cache = cache.data(),
                                     .update = update.data(),
                                     .start = first_rows.data(),
                                     .batch = cache.shape(0),
                                     .outer = cache.shape(1),
                                     .rows = cache.shape(2),
                                     .steps = update.shape(2),
                                     .row_bytes = row_bytes,
                                     .cache_batch_stride = cache.stride(0),
                                     .cache_outer_stride = cache.stride(1),
                                     .cache_row_stride = cache.stride(2),
                                     .update_batch_stride = update.stride(0),
                                     .update_outer_stride = update.stride(1),
                                     .update_row_stride = update.stride(2)};
            const ReleasedGil released;
            tensor_scatter(args);
        },
        nb::arg("cache").noconvert(), nb::arg("update").noconvert(), nb::arg("start").noconvert());
}

}  // namespace decodestep
