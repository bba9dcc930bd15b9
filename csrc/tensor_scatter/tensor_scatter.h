// The KV-cache update of ONNX TensorScatter, as copies of whole rows of bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace decodestep {

// The update is [batch, outer, steps, row_bytes], the cache [batch, outer, rows, row_bytes], steps <= rows. Writes
// cache[b, o, (start[b] + t) mod rows] = update[b, o, t]. Strides are in bytes; each row is contiguous.
struct TensorScatter {
    uint8_t* cache;
    const uint8_t* update;
    const int64_t* start;  // [batch]
    size_t batch, outer, rows, steps, row_bytes;
    ptrdiff_t cache_batch_stride, cache_outer_stride, cache_row_stride;
    ptrdiff_t update_batch_stride, update_outer_stride, update_row_stride;
};

void tensor_scatter(const TensorScatter& args);

}  // namespace decodestep
