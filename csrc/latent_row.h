// What the MLA prolog caches of a token: the bytes of its two rows, and their place in a cache of any layout. Included
// by kernels that are compiled once for each instruction set.
#pragma once

#include "mla_prolog.h"
#include "rounding.h"

namespace decodestep::DECODESTEP_ISA {

// Interleaved pairs in, halves out: pair j gives out[j] and out[half + j]. The pairs first, first + 1, ... of the row
// are given; what the other pairs would give is zero.
template <class Real>
DECODESTEP_INLINE void rotate(const float* x, size_t pairs, size_t first, size_t half, const float* sin,
                              const float* cos, Real* out) {
    if (pairs < half) std::memset(out, 0, 2 * half * sizeof(Real));
    for (size_t i = 0; i < pairs; ++i) {
        const size_t j = first + i;
        const float even = x[2 * i], odd = x[2 * i + 1];
        put(even * cos[j] - odd * sin[j], out + j);
        put(odd * cos[half + j] + even * sin[half + j], out + half + j);
    }
}

// round(clip(value) / scale) with scale = clip * largest / 127 of each tile.
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

// The bytes that the caches keep of a normed latent and of its rope key.
template <class Real>
void latent_row(const MlaProlog& a, const float* latent, const Real* key, uint8_t* kv, uint8_t* kr) {
    auto* q = reinterpret_cast<int8_t*>(kv);
    switch (a.cache_scale) {
        case CacheScale::none:
            put_all(latent, a.latent, reinterpret_cast<Real*>(kv));
            break;
        case CacheScale::channel:
            for (size_t i = 0; i < a.latent; ++i) q[i] = to_int8(latent[i] * a.ckv_scale[i]);
            for (size_t i = 0; i < a.rope; ++i)
                reinterpret_cast<int8_t*>(kr)[i] = to_int8(widen(key[i]) * a.ckr_scale[i]);
            return;
        case CacheScale::tensor:
            for (size_t i = 0; i < a.latent; ++i) q[i] = to_int8(latent[i] * a.ckv_scale[0]);
            break;
        case CacheScale::tile:
            kr = kv + a.latent;
            quantise_tiles(latent, a.latent, a.clip, q, kr + a.rope * sizeof(Real));
            break;
    }
    std::memcpy(kr, key, a.rope * sizeof(Real));
}

inline void store_row(const Cache& c, size_t block_size, size_t slot, const uint8_t* row) {
    uint8_t* block = c.data + static_cast<ptrdiff_t>(slot / block_size) * c.block_stride;
    for (size_t h = 0; h < c.width; h += c.run, row += c.run * c.value_bytes) {
        const size_t element = h * block_size + slot % block_size * c.run;
        uint8_t* to = block + static_cast<ptrdiff_t>(element / c.width) * c.row_stride +
                      static_cast<ptrdiff_t>(element % c.width) * c.value_stride;
        if (c.value_stride == static_cast<ptrdiff_t>(c.value_bytes)) {
            std::memcpy(to, row, c.run * c.value_bytes);
        } else {
            for (size_t i = 0; i < c.run; ++i)
                std::memcpy(to + static_cast<ptrdiff_t>(i) * c.value_stride, row + i * c.value_bytes, c.value_bytes);
        }
    }
}

}  // namespace decodestep::DECODESTEP_ISA
