// The type of a cache's values, the size of a page of the grouped-query cache, and that of a tile of a latent row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/half.h"

namespace decodestep {

enum class CacheType { f32, f16, bf16, i8 };

template <CacheType type>
using CacheValue = std::conditional_t<
    type == CacheType::f32, float,
    std::conditional_t<type == CacheType::f16, F16, std::conditional_t<type == CacheType::bf16, Bf16, int8_t>>>;

constexpr size_t kPagePositions = 16;  // positions of a sequence in a page of the grouped-query cache

constexpr size_t kLatentTile = 128;  // values of a latent that share a scale, in rows that are quantised by tiles

// Of the rope keys beside latents of a type.
constexpr CacheType rope_key_type(CacheType latents) { return latents == CacheType::i8 ? CacheType::bf16 : latents; }

constexpr size_t value_bytes(CacheType type) { return type == CacheType::f32 ? 4 : type == CacheType::i8 ? 1 : 2; }

}  // namespace decodestep
