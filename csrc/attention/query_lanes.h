// The queries of a tile with rows in the lanes, and their scores for a few keys at a time.
#pragma once

#include "attention/attention_products.h"
#include "attention/block_scores.h"
#include "attention/key_prefetcher.h"

namespace decodestep::DECODESTEP_BUILD {

class QueryLanes {
  public:
    static size_t floats(const TileCall& call) { return (call.rows.groups * call.lanes + kLanes) * call.query_columns; }

    // memory: floats(call), used exclusively by the object during its lifetime.
    QueryLanes(const TileCall& call, float* memory)
        : call_(call), lanes_(call.lanes), columns_(call.query_columns), queries_(memory) {
        const size_t rows = call.rows.in_group();
        float* const gathered = memory + call.rows.groups * lanes_ * columns_;  // sixteen rows, not yet transposed
        for (size_t g = 0; g < call.rows.groups; ++g)
            for (size_t first = 0; first < rows; first += kLanes, memory += kLanes * columns_) {
                std::fill_n(gathered, kLanes * columns_, 0.0f);
                for (size_t i = 0; i < kLanes && first + i < rows; ++i)
                    call.gather_query(g * rows + first + i, gathered + i * columns_);
                transpose_rows<float>([&](size_t i) { return gathered + i * columns_; }, columns_, memory);
            }
    }

    // The queries of sixteen rows of a group, from row r on: [columns][kLanes].
    const float* of(size_t g, size_t r) const { return queries_ + (g * lanes_ + r) * columns_; }

    // Adds key(j) . query to the block's scores for group g, over the latents or a half of the rope columns.
    template <class Key>
    void score_latents(size_t g, const Key& key, const BlockScores& block, KeyPrefetcher& next_block) const {
        score(of(g, 0), call_.latents, key, block, next_block);
    }
    template <class Key>
    void score_rope(size_t g, size_t half, const Key& key, const BlockScores& block, KeyPrefetcher& next_block) const {
        score(of(g, 0) + (call_.latents + half * call_.pairs) * kLanes, call_.pairs, key, block, next_block);
    }

    // How often a group's scores for a block of keys advance the prefetcher, and those of its rope columns alone.
    size_t advances() const { return advances_of(call_.latents) + rope_advances(); }
    size_t rope_advances() const { return 2 * advances_of(call_.pairs); }

  private:
    static size_t advances_of(size_t columns) {
        return ceil_div(columns, kChunkColumns) * ceil_div(kBlockKeys, kProductRows);
    }

    template <class Key>
    void score(const float* queries, size_t columns, const Key& key, const BlockScores& block,
               KeyPrefetcher& next_block) const {
        const size_t lanes = lanes_, stride = kLanes * columns_;
        float* const scores = block.scores();
        in_chunks(columns, [&](size_t c, size_t chunk) {
            // A chunk of all queries fits in the first-level cache; a chunk of keys read in place may not.
            each_constant_piece<kProductRows>(block.keys().count, [&]<int R>(size_t j) {
                next_block.advance();
                each_constant_piece<kProductVectors>(lanes / kLanes, [&]<int V>(size_t v) {
                    add_scores<R, V>(
                        queries + c * kLanes + v * stride, stride, [&](size_t r) { return key(j + r) + c; }, chunk,
                        scores + j * lanes + v * kLanes, lanes);
                });
            });
        });
    }

    const TileCall& call_;
    const size_t lanes_, columns_;
    const float* const queries_;
};

}  // namespace decodestep::DECODESTEP_BUILD
