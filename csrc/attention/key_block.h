// A block of keys of one sequence, for any type and page size of its cache.
#pragma once

#include <algorithm>

#include "attention/mla_attention.h"
#include "core/division.h"
#include "simd/transpose.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr size_t kBlockKeys = 64;

constexpr size_t whole_vectors(size_t n) { return round_up(n, kLanes); }

// Keys [first, first + count) of a sequence.
struct KeyRange {
    size_t first = 0, count = 0;

    // How many of them a token sees whose keys end at `length`.
    size_t below(size_t length) const { return length <= first ? 0 : std::min(count, length - first); }
};

// Calls body<type>().
template <class Body>
DECODESTEP_INLINE void with_type(CacheType type, Body&& body) {
    switch (type) {
        case CacheType::f32:
            return body.template operator()<CacheType::f32>();
        case CacheType::f16:
            return body.template operator()<CacheType::f16>();
        case CacheType::bf16:
            return body.template operator()<CacheType::bf16>();
        case CacheType::i8:
            return body.template operator()<CacheType::i8>();
    }
}

// The first `lanes` values at p as float32, padded with zeros.
template <CacheType type>
DECODESTEP_INLINE f32x16 widen(const uint8_t* p, size_t lanes) {
    uint8_t copy[kLanes * value_bytes(type)];
    if (lanes < kLanes) {
        std::memset(copy, 0, sizeof copy);
        std::memcpy(copy, p, lanes * value_bytes(type));
        p = copy;
    }
    if constexpr (type == CacheType::f32) return load(reinterpret_cast<const float*>(p));
    if constexpr (type == CacheType::f16) return from_f16(p);
    if constexpr (type == CacheType::bf16) return from_bf16(p);
    if constexpr (type == CacheType::i8) return from_i8(p);
}

// Where a cache holds the keys of a block.
class StoredRows {
  public:
    // table: the blocks of the sequence. The rest of a whole block of keys repeats the last one.
    void find(const PagedRows& cache, size_t block_size, const int64_t* table, KeyRange keys) {
        type_ = cache.type;
        const size_t bytes = cache.pitch() * value_bytes(type_);
        size_t block = keys.first / block_size, row = keys.first % block_size;
        for (size_t j = 0; j < keys.count; ++block, row = 0) {
            const uint8_t* const rows = cache.row(table[block], 0, 0);
            for (; row < block_size && j < keys.count; ++row, ++j) rows_[j] = rows + row * bytes;
        }
        std::fill(rows_ + keys.count, rows_ + kBlockKeys, rows_[keys.count - 1]);
    }

    const uint8_t* operator[](size_t j) const { return rows_[j]; }

    // out: for each sixteen of n keys, [count][kLanes], the columns [at, at + count).
    void transpose(size_t n, size_t at, size_t count, float* out) const {
        with_type(type_, [&]<CacheType type>() {
            for (size_t j = 0; j < n; j += kLanes)
                transpose_rows<CacheValue<type>>([&](size_t i) { return rows_[j + i] + at * value_bytes(type); }, count,
                                                 out + j * count);
        });
    }

  private:
    CacheType type_;
    const uint8_t* rows_[kBlockKeys];
};

}  // namespace decodestep::DECODESTEP_BUILD
