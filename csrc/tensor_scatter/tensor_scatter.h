// The cache update of ONNX TensorScatter as copies of whole runs of bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace decodestep {

// The update is [batch, outer, steps, run bytes]; step t of prefix (b, o) goes to row (start[b] + t) mod rows of
// cache[b, o], whose rows are `run` bytes each. Strides are in bytes; a row itself is contiguous on both sides.
struct TensorScatter {
    uint8_t* cache;
    const uint8_t* update;
    const int64_t* start;  // [batch]
    size_t batch, outer, rows, steps, run;
    ptrdiff_t cache_batch, cache_outer, cache_row, update_batch, update_outer, update_row;
};

void tensor_scatter(const TensorScatter& args);

}  // namespace decodestep
