// The two cache rows of a token in the MLA prolog: their bytes, and their places in a cache of any layout.
#pragma once

#include "mla_prolog/float8_rows.h"
#include "mla_prolog/mla_prolog.h"
#include "simd/rounding.h"

namespace decodestep::DECODESTEP_BUILD {

// For each tile: bound = clip * largest magnitude, scale = bound / 127, q = round(clamp(value, -bound, bound) / scale).
// NaN becomes 0, and so does a tile of zeros.
inline void quantise_tiles(const float* latent, size_t n, float clip, int8_t* q, uint8_t* scales) {
    for (size_t i = 0; i < n; i += kCacheTile, scales += sizeof(float)) {
        const float bound = largest_magnitude(latent + i, kCacheTile) * clip, scale = bound / 127.0f;
        const float factor = scale == 0.0f ? scale : 1.0f / scale;
        for (size_t j = i; j < i + kCacheTile; ++j) {
            const float low = latent[j] < -bound ? -bound : latent[j], value = low > bound ? bound : low;
            q[j] = to_int8(value * factor);
        }
        std::memcpy(scales, &scale, sizeof scale);
    }
}

// The bytes of a token's cache rows, from its normed latent and its rope key. With tiles both go to kv.
template <class T>
void encode_cache_rows(const MlaProlog& a, const float* latent, const T* key, uint8_t* kv, uint8_t* kr) {
    auto* q = reinterpret_cast<int8_t*>(kv);
    auto* q8 = reinterpret_cast<F8*>(kv);
    switch (a.cache_scale) {
        case CacheScale::none:
            convert(latent, a.latent, reinterpret_cast<T*>(kv));
            break;
        case CacheScale::channel:
            put_int8(latent, a.latent, a.ckv_scale, q);
            for (size_t i = 0; i < a.rope; ++i)
                reinterpret_cast<int8_t*>(kr)[i] = to_int8(to_float(key[i]) * a.ckr_scale[i]);
            return;
        case CacheScale::tensor:
            if (!a.float8) put_int8(latent, a.latent, a.ckv_scale[0], q);
            for (size_t i = 0; a.float8 && i < a.latent; ++i) q8[i] = to_f8(latent[i] * a.ckv_scale[0]);
            break;
        case CacheScale::tile: {
            kr = kv + a.latent;
            uint8_t* scales = kr + a.rope * sizeof(T);
            if (a.float8)
                quantise_float8_tiles(latent, a.latent, kCacheTile, q8, scales);
            else
                quantise_tiles(latent, a.latent, a.clip, q, scales);
            break;
        }
    }
    std::memcpy(kr, key, a.rope * sizeof(T));
}

// Copies a row to its slot, fractal by fractal.
inline void write_cache_row(const PrologCache& c, size_t block_size, size_t slot, const uint8_t* row) {
    uint8_t* block = c.data + static_cast<ptrdiff_t>(slot / block_size) * c.block_stride;
    for (size_t h = 0; h < c.width; h += c.fractal, row += c.fractal * c.value_bytes) {
        const size_t element = h * block_size + slot % block_size * c.fractal;
        uint8_t* to = block + static_cast<ptrdiff_t>(element / c.width) * c.row_stride +
                      static_cast<ptrdiff_t>(element % c.width) * c.value_stride;
        if (c.value_stride == static_cast<ptrdiff_t>(c.value_bytes)) {
            std::memcpy(to, row, c.fractal * c.value_bytes);
        } else {
            for (size_t i = 0; i < c.fractal; ++i)
                std::memcpy(to + static_cast<ptrdiff_t>(i) * c.value_stride, row + i * c.value_bytes, c.value_bytes);
        }
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
