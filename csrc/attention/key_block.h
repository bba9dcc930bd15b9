// A block of keys of one sequence, for any type and page size of its cache, in one of two forms.
//
// For many queries: rows of float32, in place in a float32 cache, otherwise copied (`read_keys`) with a stride of an
// odd number of cache lines, so that a few columns of all rows fit in the first-level cache.
//
// Latents with their own scales are not copied (`byte_keys.h`).
//
// For a few queries: the rows in place (`StoredRows`), because copying them would take longer than the products. They
// are widened in registers, and transposed for the scores, so that keys fill the lanes that queries would leave empty.
#pragma once

#include <algorithm>

#include "attention/mla_attention.h"
#include "simd/transpose.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr size_t kBlockKeys = 64;

constexpr size_t whole_vectors(size_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

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

// The columns of the caches that are read for groups [group, group + groups), and their layout in a row of a block:
// latents from 0 on, then the groups' pairs of each half of the rope keys.
struct KeyColumns {
    size_t first_latent, latents;
    size_t first_rope[2], ropes, rope_at[2];
    size_t stride;  // of the rows; a vector may be read from any column

    KeyColumns(const MlaAttention& a, size_t group, size_t groups)
        : first_latent(a.query ? 0 : group * (a.kv.width / a.groups)),
          latents(a.query ? a.kv.width : groups * (a.kv.width / a.groups)),
          first_rope{group * (a.kr.width / 2 / a.groups), a.kr.width / 2 + first_rope[0]},
          ropes(groups * (a.kr.width / 2 / a.groups)),
          rope_at{whole_vectors(latents), whole_vectors(latents) + whole_vectors(ropes)},
          stride((rope_at[1] + whole_vectors(ropes) + kLanes) | kLanes) {}

    size_t floats() const { return kBlockKeys * stride; }
};

// Writes keys [first, first + n) of a sequence, n <= kBlockKeys, to `out`: [n, columns.stride].
// table: the blocks of the sequence.
inline void read_keys(const MlaAttention& a, const int64_t* table, const KeyColumns& columns, size_t first, size_t n,
                      float* out) {
    const auto read = [&](const PagedRows& cache, size_t from, size_t count, size_t at) {
        with_type(cache.type, [&]<CacheType type>() {
            constexpr size_t bytes = value_bytes(type);
            const size_t whole = count / kLanes * kLanes;
            size_t block = first / a.block_size, row = first % a.block_size;
            for (size_t j = 0; j < n; ++j) {
                const uint8_t* start = static_cast<const uint8_t*>(cache.data) +
                                       (table[block] * cache.block_stride + row * cache.pitch()) * bytes;
                const uint8_t* values = start + from * bytes;
                float* key = out + j * columns.stride + at;
                for (size_t c = 0; c < whole; c += kLanes) store(key + c, widen<type>(values + c * bytes, kLanes));
                if (whole < count) store(key + whole, widen<type>(values + whole * bytes, count - whole));
                if (++row == a.block_size) {
                    row = 0;
                    ++block;
                }
            }
        });
    };
    if (!a.kv.own_scales) read(a.kv, columns.first_latent, columns.latents, 0);
    for (const int half : {0, 1}) read(a.kr, columns.first_rope[half], columns.ropes, columns.rope_at[half]);
}

// The rows of a cache for a block of keys.
class StoredRows {
  public:
    // Locates keys [first, first + n) of a sequence; the rest of the block repeats the last one.
    // table: the blocks of the sequence.
    void find(const PagedRows& cache, size_t block_size, const int64_t* table, size_t first, size_t n) {
        type_ = cache.type;
        const size_t bytes = value_bytes(type_);
        size_t block = first / block_size, row = first % block_size;
        for (size_t j = 0; j < n; ++block, row = 0) {
            const auto* rows = static_cast<const uint8_t*>(cache.data) +
                               table[block] * cache.block_stride * static_cast<ptrdiff_t>(bytes);
            for (; row < block_size && j < n; ++row, ++j) rows_[j] = rows + row * cache.pitch() * bytes;
        }
        std::fill(rows_ + n, rows_ + kBlockKeys, rows_[n - 1]);
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

// Prefetches the keys of a sequence a few cache lines at a time between other work: all at once they would wait for
// each other and delay reads of keys. A block may be larger than the first-level cache.
class KeyPrefetcher {
  public:
    KeyPrefetcher(const MlaAttention& a, const int64_t* table, const KeyColumns& columns)
        : a_(a), table_(table), columns_(columns) {}

    // Continues with keys [first, end), except those that have already been prefetched.
    void aim(size_t first, size_t end) {
        if (first > position_ || end < position_) position_ = first, part_ = 0, left_ = 0;
        end_ = end;
    }

    void advance(size_t lines) {
        while (lines > 0) {
            if (left_ == 0 && !next_part()) return;
            const size_t n = std::min(lines, left_);
            for (size_t i = 0; i < n; ++i) prefetch_to_second_level(at_ + i * kLine);
            at_ += n * kLine;
            left_ -= n;
            lines -= n;
        }
    }

    size_t lines_a_key() const { return lines(a_.kv, columns_.latents) + 2 * lines(a_.kr, columns_.ropes); }

  private:
    static constexpr size_t kLine = 64;
    static size_t lines(const PagedRows& cache, size_t values) {
        return (values * value_bytes(cache.type) + kLine - 1) / kLine;
    }

    // The latents of a key, then each half of its rope key.
    bool next_part() {
        if (position_ >= end_) return false;
        const bool latents = part_ == 0;
        const PagedRows& cache = latents ? a_.kv : a_.kr;
        const size_t from = latents ? columns_.first_latent : columns_.first_rope[part_ - 1];
        const auto place = table_[position_ / a_.block_size] * cache.block_stride +
                           static_cast<ptrdiff_t>(position_ % a_.block_size * cache.pitch() + from);
        at_ = static_cast<const uint8_t*>(cache.data) + place * static_cast<ptrdiff_t>(value_bytes(cache.type));
        left_ = lines(cache, latents ? columns_.latents : columns_.ropes);
        if (++part_ == 3) part_ = 0, ++position_;
        return true;
    }

    const MlaAttention& a_;
    const int64_t* const table_;
    const KeyColumns& columns_;
    size_t position_ = 0, end_ = 0, part_ = 0, left_ = 0;
    const uint8_t* at_ = nullptr;
};

}  // namespace decodestep::DECODESTEP_BUILD
