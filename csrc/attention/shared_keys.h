// Keys as rows of float32, which many queries share.
#pragma once

#include "attention/key_rows.h"
#include "attention/query_lanes.h"
#include "attention/value_sums.h"

namespace decodestep::DECODESTEP_BUILD {

// Float32 keys, read where the cache holds them.
class KeysInPlace {
  public:
    static constexpr bool kInLanes = false;
    static size_t floats(const TileCall& call) {
        return QueryLanes::floats(call) + kBlockKeys * kValueVectors * kLanes;
    }

    KeysInPlace(const TileCall& call, float* memory)
        : call_(call), queries_(call, memory), values_(memory + QueryLanes::floats(call)) {}

    void begin_block(KeyRange keys) {
        kv_.find(call_.a.kv, call_.a.block_size, call_.table, keys);
        kr_.find(call_.a.kr, call_.a.block_size, call_.table, keys);
    }

    void score(size_t g, const BlockScores& scores, KeyPrefetcher& next_block) const {
        const auto key = [](const StoredRows& rows, size_t column) {
            return [&rows, column](size_t j) { return reinterpret_cast<const float*>(rows[j]) + column; };
        };
        queries_.score_latents(g, key(kv_, 0), scores, next_block);
        for (const size_t half : {0, 1})
            queries_.score_rope(g, half, key(kr_, call_.rope_column(g, half)), scores, next_block);
    }

    void sum_values(size_t g, const BlockScores& scores, PartialSoftmaxes partials, KeyPrefetcher& next_block) const {
        const ValueSums sums(call_.rows, scores, partials, next_block);
        const auto row = [this, at = call_.value_column(g) * sizeof(float)](size_t j) { return kv_[j] + at; };
        sums.add<CacheType::f32, kValueVectors, true>(row, call_.width, values_);
    }

    size_t advances() const { return queries_.advances() + ValueSums::advances(call_, kValueVectors); }

  private:
    const TileCall& call_;
    const QueryLanes queries_;
    float* const values_;  // a copy of those that are being summed
    StoredRows kv_, kr_;
};

// Keys of any type, copied.
class CopiedKeys {
  public:
    static constexpr bool kInLanes = false;
    static size_t floats(const TileCall& call) { return QueryLanes::floats(call) + KeyRows::floats(call, true); }

    CopiedKeys(const TileCall& call, float* memory)
        : call_(call), queries_(call, memory), rows_(call, true, memory + QueryLanes::floats(call)) {}

    void begin_block(KeyRange keys) { rows_.read(keys); }

    void score(size_t g, const BlockScores& scores, KeyPrefetcher& next_block) const {
        queries_.score_latents(g, rows_.latents(), scores, next_block);
        for (const size_t half : {0, 1}) queries_.score_rope(g, half, rows_.rope(g, half), scores, next_block);
    }

    void sum_values(size_t g, const BlockScores& scores, PartialSoftmaxes partials, KeyPrefetcher& next_block) const {
        const ValueSums sums(call_.rows, scores, partials, next_block);
        const auto row = [values = rows_.values(g)](size_t j) { return reinterpret_cast<const uint8_t*>(values(j)); };
        sums.add<CacheType::f32, kValueVectors>(row, whole_vectors(call_.width));
    }

    size_t advances() const { return queries_.advances() + ValueSums::advances(call_, kValueVectors); }

  private:
    const TileCall& call_;
    const QueryLanes queries_;
    KeyRows rows_;
};

}  // namespace decodestep::DECODESTEP_BUILD
