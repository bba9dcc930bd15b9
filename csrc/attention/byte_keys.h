// Int8 latents with their own scales, for any number of queries: multiplied as integers where the cache holds them.
// Rope keys are copied as float32.
#pragma once

#include "attention/integer_products.h"
#include "attention/key_rows.h"
#include "attention/query_lanes.h"

namespace decodestep::DECODESTEP_BUILD {

class ByteKeys {
  public:
    static constexpr bool kInLanes = false;
    static size_t floats(const TileCall& call) {
        return QueryLanes::floats(call) + KeyRows::floats(call, false) +
               IntegerProducts::floats(call.a.kv.width, call.lanes);
    }

    ByteKeys(const TileCall& call, float* memory)
        : call_(call),
          queries_(call, memory),
          rope_(call, false, memory + QueryLanes::floats(call)),
          products_(call.a.kv.width, call.lanes, memory + QueryLanes::floats(call) + KeyRows::floats(call, false)) {
        for (size_t r = 0; r < call.lanes; r += kLanes) products_.round_queries(r, queries_.of(0, r));
    }

    void begin_block(KeyRange keys) {
        kv_.find(call_.a.kv, call_.a.block_size, call_.table, keys);
        rope_.read(keys);
        products_.read_scales(kv_, keys.count);
    }

    void score(size_t g, const BlockScores& scores, KeyPrefetcher& next_block) const {
        for (const size_t half : {0, 1}) queries_.score_rope(g, half, rope_.rope(g, half), scores, next_block);
        products_.add_scores(kv_, scores, next_block);
    }

    void sum_values(size_t g, const BlockScores& scores, PartialSoftmaxes partials, KeyPrefetcher& next_block) {
        products_.round_weights(scores);
        products_.add_values(kv_, call_.value_column(g), call_.rows.in_group(), scores, partials, next_block);
    }

    size_t advances() const { return queries_.rope_advances() + products_.advances(call_.rows.in_group()); }

  private:
    const TileCall& call_;
    const QueryLanes queries_;
    KeyRows rope_;
    StoredRows kv_;
    IntegerProducts products_;
};

}  // namespace decodestep::DECODESTEP_BUILD
