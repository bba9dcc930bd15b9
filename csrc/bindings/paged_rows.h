// Paged caches of latents or keys as arguments.
#pragma once

#include "attention/mla_attention.h"
#include "bindings/bindings.h"

namespace decodestep {

using PagedCache = nb::ndarray<nb::ndim<4>, nb::ro, nb::device::cpu>;

// A bfloat16 cache is passed as the uint16 of its bits, one of eight-bit floats as uint8.
inline CacheType cache_type_of(nb::dlpack::dtype dtype) {
    if (dtype == nb::dtype<float>()) return CacheType::f32;
    if (dtype == nb::dtype<uint16_t>()) return CacheType::bf16;
    if (dtype == nb::dtype<int8_t>() || dtype == nb::dtype<uint8_t>()) return CacheType::i8;
    require(dtype.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float) && dtype.bits == 16 && dtype.lanes == 1,
            "a cache has an unknown type");
    return CacheType::f16;
}

inline PagedRows paged_rows_of(const PagedCache& cache, const std::optional<Vector>& scale, bool nz) {
    const CacheType type = cache_type_of(cache.dtype());
    require(cache.size() == 0 || reinterpret_cast<uintptr_t>(cache.data()) % value_bytes(type) == 0,
            "an array must be aligned to its items");
    require(!scale || scale->shape(0) == cache.shape(3), "a scale has the wrong shape");
    PagedRows rows{cache.data(), type, cache.shape(3), block_stride(cache), scale ? scale->data() : nullptr};
    rows.float8 = cache.dtype() == nb::dtype<uint8_t>();
    if (nz) {
        require(cache.shape(3) % rows.fractal() == 0, "the rows of a cache in NZ order must be whole fractal rows");
        rows.fractal_stride = cache.shape(1) * rows.fractal();
    }
    return rows;
}

}  // namespace decodestep
