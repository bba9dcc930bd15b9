// Keys of any type for a few queries, read where the cache holds them, because copying would take longer than the
// products: they are widened in registers, and transposed for the scores, so that keys fill the lanes that queries
// would leave empty.
#pragma once

#include "attention/attention_products.h"
#include "attention/value_sums.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr size_t kFewRows = 6;  // of a group: up to this many, keys are in the lanes

class KeysInLanes {
  public:
    static constexpr bool kInLanes = true;
    static size_t floats(const TileCall& call) {
        return kBlockKeys * kChunkColumns + whole_vectors(call.rows.count() * call.query_columns);
    }

    KeysInLanes(const TileCall& call, float* memory)
        : call_(call), keys_(memory), queries_(memory + kBlockKeys * kChunkColumns) {
        for (size_t r = 0; r < call.rows.count(); ++r) call.gather_query(r, queries_ + r * call.query_columns);
    }

    void begin_block(KeyRange keys) {
        kv_.find(call_.a.kv, call_.a.block_size, call_.table, keys);
        kr_.find(call_.a.kr, call_.a.block_size, call_.table, keys);
    }

    void score(size_t g, const BlockScores& scores, KeyPrefetcher& next_block) const {
        const size_t columns = call_.query_columns, keys = scores.keys().count;
        float* const out = scores.scores();
        const float* queries = queries_ + g * call_.rows.in_group() * columns;
        const auto add = [&](const StoredRows& rows, size_t at, size_t count) {
            in_chunks(count, [&](size_t c, size_t chunk) {
                rows.transpose(keys, at + c, chunk, keys_);
                each_constant_piece<kFewRows>(call_.rows.in_group(), [&]<int R>(size_t r) {
                    next_block.advance();
                    constexpr int V = vectors_beside(R);
                    for (size_t j = 0; j < keys; j += V * kLanes)
                        add_scores<R, V>(
                            keys_ + j * chunk, kLanes * chunk, [&](size_t i) { return queries + (r + i) * columns; },
                            chunk, out + r * kBlockKeys + j, kBlockKeys);
                });
                queries += chunk;
            });
        };
        add(kv_, 0, call_.latents);
        for (const size_t half : {0, 1}) add(kr_, call_.rope_column(g, half), call_.pairs);
    }

    void sum_values(size_t g, const BlockScores& scores, PartialSoftmaxes partials, KeyPrefetcher& next_block) const {
        const ValueSums sums(call_.rows, scores, partials, next_block);
        with_type(call_.a.kv.type, [&]<CacheType type>() {
            const auto row = [this, at = call_.value_column(g) * value_bytes(type)](size_t j) { return kv_[j] + at; };
            switch (vectors()) {
                case 4:
                    return sums.add<type, 4>(row, call_.width);
                case 2:
                    return sums.add<type, 2>(row, call_.width);
                default:
                    return sums.add<type, 1>(row, call_.width);
            }
        });
    }

    size_t advances() const {
        return ceil_div(call_.latents, kChunkColumns) + 2 * ceil_div(call_.pairs, kChunkColumns) +
               ValueSums::advances(call_, vectors());
    }

  private:
    int vectors() const { return vectors_beside(static_cast<int>(call_.rows.in_group())); }

    const TileCall& call_;
    float* const keys_;     // a chunk of a block's columns: for each sixteen keys, [columns][kLanes]
    float* const queries_;  // [rows, columns]
    StoredRows kv_, kr_;
};

}  // namespace decodestep::DECODESTEP_BUILD
