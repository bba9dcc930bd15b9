// What the values of a cache are.
#pragma once

#include <cstddef>

namespace decodestep {

enum class CacheType { f32, f16, bf16, i8 };

constexpr size_t value_bytes(CacheType type) { return type == CacheType::f32 ? 4 : type == CacheType::i8 ? 1 : 2; }

}  // namespace decodestep
