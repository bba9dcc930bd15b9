// The keys of a block copied as rows of float32.
#pragma once

#include "attention/tile_call.h"
#include "core/float8.h"

namespace decodestep::DECODESTEP_BUILD {

// Rows of an odd number of cache lines, so that a few columns of all of them fit in the first-level cache: the latents
// that the tile reads, if wanted, and its groups' pairs of each half of the rope keys.
class KeyRows {
  public:
    static size_t floats(const TileCall& call, bool latents) {
        return kBlockKeys * KeyRows(call, latents, nullptr).stride_;
    }

    // memory: floats(call, latents), used exclusively by the object during its lifetime.
    KeyRows(const TileCall& call, bool latents, float* memory)
        : call_(call),
          latents_(latents ? call.latents_read().count : 0),
          rope_at_{whole_vectors(latents_), whole_vectors(latents_) + whole_vectors(call.ropes_read(0).count)},
          stride_((rope_at_[1] + whole_vectors(call.ropes_read(1).count) + kLanes) | kLanes),
          rows_(memory) {}

    void read(KeyRange keys) {
        if (latents_ > 0) read(call_.a.kv, call_.latents_read(), keys, 0);
        for (const size_t half : {0, 1}) read(call_.a.kr, call_.ropes_read(half), keys, rope_at_[half]);
    }

    // The columns of key j from one on; a vector may be read from any.
    struct From {
        const float* first;
        size_t stride;

        const float* operator()(size_t j) const { return first + j * stride; }
    };
    // A key's latents, a group's values, a group's pairs of a half of its rope key.
    From latents() const { return from(0); }
    From values(size_t g) const { return from(call_.value_column(g) - call_.latents_read().first); }
    From rope(size_t g, size_t half) const { return from(rope_at_[half] + g * call_.pairs); }

  private:
    From from(size_t column) const { return {rows_ + column, stride_}; }

    // Columns of the keys, widened, to the columns of the rows from `at` on.
    void read(const PagedRows& cache, Columns columns, KeyRange keys, size_t at) {
        StoredRows stored;
        stored.find(cache, call_.a.block_size, call_.table, keys);
        with_type(cache.type, [&]<CacheType type>() {
            constexpr size_t bytes = value_bytes(type);
            if (cache.nz()) return read_pieces<type>(stored, cache, columns, keys.count, at);
            if (cache.tile_scales > 0) return read_tiles(stored, cache, columns, keys.count, at);
            const size_t whole = columns.count / kLanes * kLanes;
            for (size_t j = 0; j < keys.count; ++j) {
                const uint8_t* values = stored[j] + columns.first * bytes;
                float* key = rows_ + j * stride_ + at;
                for (size_t c = 0; c < whole; c += kLanes)
                    store(key + c, widened<type>(cache, values + c * bytes, kLanes));
                if (whole < columns.count)
                    store(key + whole, widened<type>(cache, values + whole * bytes, columns.count - whole));
            }
        });
    }

    // The same of rows in NZ order. A vector that a piece does not fill is overwritten by the next piece or, past the
    // last column, by what is read after it.
    template <CacheType type>
    void read_pieces(const StoredRows& stored, const PagedRows& cache, Columns columns, size_t keys, size_t at) {
        const size_t fractal = cache.fractal(), end = columns.first + columns.count;
        for (size_t j = 0; j < keys; ++j) {
            float* key = rows_ + j * stride_ + at;
            for (size_t c = columns.first, n; c < end; c += n, key += n) {
                n = std::min({fractal - c % fractal, end - c, size_t{kLanes}});
                store(key, widened<type>(cache, stored[j] + cache.place(c) * value_bytes(type), n));
            }
        }
    }

    // The same of values of one byte, each times the scale of its tile. Columns begin and end with tiles.
    void read_tiles(const StoredRows& stored, const PagedRows& cache, Columns columns, size_t keys, size_t at) {
        for (size_t j = 0; j < keys; ++j) {
            float* key = rows_ + j * stride_ + at;
            for (size_t c = 0; c < columns.count; c += kLanes) {
                const size_t column = columns.first + c;
                float scale;
                std::memcpy(&scale, stored[j] + cache.tile_scales + column / kLatentTile * sizeof scale, sizeof scale);
                const uint8_t* values = stored[j] + column;
                store(key + c, widened<CacheType::i8>(cache, values, kLanes) * broadcast(scale));
            }
        }
    }

    // The first n values at p as float32, padded with zeros.
    template <CacheType type>
    static f32x16 widened(const PagedRows& cache, const uint8_t* p, size_t n) {
        if (type != CacheType::i8 || !cache.float8) return widen<type>(p, n);
        float lanes[kLanes] = {};
        for (size_t i = 0; i < n; ++i) lanes[i] = to_float(F8{p[i]});
        return load(lanes);
    }

    const TileCall& call_;
    const size_t latents_, rope_at_[2], stride_;
    float* const rows_;
};

}  // namespace decodestep::DECODESTEP_BUILD
