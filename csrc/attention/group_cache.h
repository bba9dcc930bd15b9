// The types of a grouped-query cache: how sixteen values are read and written, and the type of their factors.
//
// A page holds 16 positions of one key-value head, keys and values separately. `column` is the first of sixteen
// columns.
//
// Bf16Cache: keys [width / 2][16][2], so that 16 scores are sums of products of column pairs, without an addition
// across lanes; values [8][width][2], pairs of positions. Queries and weights are rounded to bfloat16 and multiplied by
// the instruction for pairs if there is one. F16Cache, I8Cache: a block for every sixteen columns; of keys [16
// columns][16 positions], of values [16 positions][16 columns]. In int8 blocks sixteen bfloat16 scales come first, one
// for each position. Queries and weights are float32.
#pragma once

#include "attention/cache_type.h"
#include "simd/rounding.h"

namespace decodestep::DECODESTEP_BUILD {

struct Bf16Cache {
    using Factor = PairDot::Value;                  // of queries and weights, where they are multiplied
    static constexpr size_t kGroup = 2;             // columns of keys, or positions of values, that are added at a time
    static constexpr int kSteps = PairDot::kSteps;  // products for these
    static constexpr size_t kFewQueries = 2;        // that multiply values at a time if registers are few

    // Bytes of a page for each of its positions.
    static constexpr size_t bytes(size_t width) { return 2 * width; }

    template <int step>
    static DECODESTEP_INLINE auto factor(const Factor* pair) {
        return PairDot::token<step>(pair);
    }
    template <class Products>
    static DECODESTEP_INLINE f32x16 add(f32x16 sums, const Products& factor, const Products& values) {
        return PairDot::add(sums, factor, values);
    }
    static DECODESTEP_INLINE const uint8_t* key_at(const uint8_t* page, size_t column) { return page + 32 * column; }
    template <int step>
    static DECODESTEP_INLINE auto key(const uint8_t* page, size_t column) {
        return PairDot::weights<step>(key_at(page, column));
    }

    // The values of a page from a group of positions on, in vectors of columns.
    struct Values {
        const uint8_t* at_;
        size_t step_;

        DECODESTEP_INLINE Values(const uint8_t* page, size_t width, size_t position, size_t column)
            : at_(page + position / 2 * 4 * width + 4 * column), step_(4 * width) {}
        DECODESTEP_INLINE const uint8_t* at(size_t vector) const { return at_ + 64 * vector; }
        // With zeros in place of the first or second position, unless it is wanted.
        template <int step>
        DECODESTEP_INLINE auto group(size_t vector, bool first = true, bool second = true) const {
            return PairDot::weights<step>(at(vector), first, second);
        }
        DECODESTEP_INLINE void next() { at_ += step_; }
    };

    static DECODESTEP_INLINE void store_query(float* out, f32x16 values) { store(out, rounded_to_bf16(values)); }
    static DECODESTEP_INLINE void store_weights(Factor* out, f32x16 weights) { PairDot::round_weights(out, weights); }
    static void store_key(uint8_t* page, size_t position, size_t column, f32x16 values) {
        Bf16 sixteen[kLanes];
        convert(values, sixteen);
        uint8_t* pair = page + 32 * column + 4 * position;
        for (size_t c = 0; c < kLanes; c += 2, pair += 4 * kPagePositions)
            std::memcpy(pair, sixteen + c, 2 * sizeof(Bf16));
    }
    static void store_value(uint8_t* page, size_t width, size_t position, size_t column, f32x16 values) {
        Bf16 sixteen[kLanes];
        convert(values, sixteen);
        uint8_t* pair = page + position / 2 * 4 * width + 4 * column + 2 * (position % 2);
        for (size_t c = 0; c < kLanes; ++c) std::memcpy(pair + 4 * c, sixteen + c, sizeof(Bf16));
    }
};

// A cache whose values are widened to float32. Block: the type of its blocks of sixteen columns.
template <class Block>
struct WidenedCache {
    using Factor = float;
    static constexpr size_t kGroup = 1;
    static constexpr int kSteps = 1;
    static constexpr size_t kFewQueries = Block::kFewQueries;

    static constexpr size_t bytes(size_t width) { return width / kLanes * (Block::kBytes / kPagePositions); }

    template <int>
    static DECODESTEP_INLINE f32x16 factor(const float* value) {
        return broadcast(*value);
    }
    static DECODESTEP_INLINE f32x16 add(f32x16 sums, f32x16 factor, f32x16 values) { return fma(factor, values, sums); }
    static DECODESTEP_INLINE const uint8_t* key_at(const uint8_t* page, size_t column) {
        return Block::row(block(page, column), column % kLanes);
    }
    template <int>
    static DECODESTEP_INLINE f32x16 key(const uint8_t* page, size_t column) {
        return Block::key(block(page, column), column % kLanes);
    }

    struct Values {
        const uint8_t* block_;
        size_t row_;

        DECODESTEP_INLINE Values(const uint8_t* page, size_t, size_t position, size_t column)
            : block_(block(page, column)), row_(position) {}
        DECODESTEP_INLINE const uint8_t* at(size_t vector) const {
            return Block::row(block_ + vector * Block::kBytes, row_);
        }
        template <int>
        DECODESTEP_INLINE f32x16 group(size_t vector, bool = true, bool = true) const {
            return Block::value(block_ + vector * Block::kBytes, row_);
        }
        DECODESTEP_INLINE void next() { ++row_; }
    };

    static DECODESTEP_INLINE void store_query(float* out, f32x16 values) { store(out, values); }
    static DECODESTEP_INLINE void store_weights(float* out, f32x16 weights) { store(out, weights); }
    static void store_key(uint8_t* page, size_t position, size_t column, f32x16 values) {
        Block::store_column(block(page, column), position, values);
    }
    static void store_value(uint8_t* page, size_t, size_t position, size_t column, f32x16 values) {
        Block::store_row(block(page, column), position, values);
    }

  private:
    template <class Byte>
    static DECODESTEP_INLINE Byte* block(Byte* page, size_t column) {
        return page + column / kLanes * Block::kBytes;
    }
};

struct F16CacheBlock {
    static constexpr size_t kBytes = 2 * kLanes * kPagePositions, kFewQueries = 2;

    static DECODESTEP_INLINE const uint8_t* row(const uint8_t* block, size_t row) { return block + 2 * kLanes * row; }
    static DECODESTEP_INLINE f32x16 key(const uint8_t* block, size_t column) { return from_f16(row(block, column)); }
    static DECODESTEP_INLINE f32x16 value(const uint8_t* block, size_t position) {
        return from_f16(row(block, position));
    }
    static void store_row(uint8_t* block, size_t position, f32x16 values) {
        uint16_t sixteen[kLanes];
        store_f16(sixteen, values);
        std::memcpy(block + position * sizeof sixteen, sixteen, sizeof sixteen);
    }
    static void store_column(uint8_t* block, size_t position, f32x16 values) {
        uint16_t sixteen[kLanes];
        store_f16(sixteen, values);
        for (size_t c = 0; c < kLanes; ++c) std::memcpy(block + 2 * (c * kPagePositions + position), sixteen + c, 2);
    }
};

// value = integer * scale. The scale is the largest magnitude of a position's sixteen values / 127, as bfloat16; if all
// are below kLeast, they become zeros. NaN and infinity make all sixteen NaN.
struct I8CacheBlock {
    static constexpr size_t kScales = 2 * kPagePositions, kBytes = kScales + kLanes * kPagePositions;
    static constexpr size_t kFewQueries = 3;  // widening costs more than spilled sums
    static constexpr float kLeast = 1e-30f;

    static DECODESTEP_INLINE const uint8_t* row(const uint8_t* block, size_t row) {
        return block + kScales + kLanes * row;
    }
    static DECODESTEP_INLINE f32x16 key(const uint8_t* block, size_t column) {
        return from_i8(row(block, column)) * from_bf16(block);
    }
    static DECODESTEP_INLINE f32x16 value(const uint8_t* block, size_t position) {
        Bf16 scale;
        std::memcpy(&scale, block + 2 * position, sizeof scale);
        return from_i8(row(block, position)) * broadcast(decodestep::to_float(scale));
    }
    static void store_row(uint8_t* block, size_t position, f32x16 values) {
        int8_t sixteen[kLanes];
        quantise(block, position, values, sixteen);
        std::memcpy(block + kScales + position * sizeof sixteen, sixteen, sizeof sixteen);
    }
    static void store_column(uint8_t* block, size_t position, f32x16 values) {
        int8_t sixteen[kLanes];
        quantise(block, position, values, sixteen);
        for (size_t c = 0; c < kLanes; ++c)
            std::memcpy(block + kScales + c * kPagePositions + position, sixteen + c, 1);
    }

  private:
    static void quantise(uint8_t* block, size_t position, f32x16 values, int8_t* out) {
        const float largest = largest_magnitude(values, values);
        const Bf16 scale = to_bf16(largest < kLeast ? 0.0f : largest / 127.0f);
        std::memcpy(block + 2 * position, &scale, sizeof scale);
        put_int8(values * broadcast(largest < kLeast ? 0.0f : 1.0f / decodestep::to_float(scale)), out);
    }
};

using F16Cache = WidenedCache<F16CacheBlock>;
using I8Cache = WidenedCache<I8CacheBlock>;

// Calls body<step>() for each step of a group's product.
template <class Cache, class Body>
DECODESTEP_INLINE void each_step(Body&& body) {
    body.template operator()<0>();
    if constexpr (Cache::kSteps == 2) body.template operator()<1>();
}

// Calls body<Cache>() with the Cache of that type.
template <class Body>
DECODESTEP_INLINE void with_cache(CacheType type, Body&& body) {
    if (type == CacheType::bf16) return body.template operator()<Bf16Cache>();
    if (type == CacheType::f16) return body.template operator()<F16Cache>();
    body.template operator()<I8Cache>();
}

}  // namespace decodestep::DECODESTEP_BUILD
