// The scores of a lightning indexer: keys are in the lanes, a few vectors of them beside a few heads of a token, so
// that a block of keys is transposed once for all heads of all tokens.
#pragma once

#include "attention/attention_products.h"
#include "attention/lightning_indexer.h"

namespace decodestep::DECODESTEP_BUILD {

// Keys that are transposed at a time: whole pieces of kProductVectors vectors.
constexpr size_t kIndexBlock = kBlockKeys / (kProductVectors * kLanes) * (kProductVectors * kLanes);

// Words in which a group of four int8 of a query lies in memory: one, or two pairs of int16 where an instruction set
// multiplies pairs. Builds of one call may differ, so there is room for two.
constexpr bool kMultipliesQuads = std::is_same_v<I8Quads, i32x16>;
constexpr size_t kQuadWords = kMultipliesQuads ? 1 : 2, kMaxQuadWords = 2;

DECODESTEP_INLINE void store_quad(int32_t* to, const int8_t* four) {
    const int16_t pairs[] = {four[0], four[2], four[1], four[3]};
    kMultipliesQuads ? std::memcpy(to, four, 4) : std::memcpy(to, pairs, sizeof pairs);
}
// The stored group in all lanes.
template <class Quads = I8Quads>
DECODESTEP_INLINE Quads load_quads(const int32_t* stored) {
    if constexpr (kMultipliesQuads)
        return broadcast_int(stored[0]);
    else
        return {broadcast_int(stored[0]), broadcast_int(stored[1])};
}

// The floats of IndexScores::memory: a block of keys, and int8 queries as they are multiplied.
inline size_t index_memory(const LightningIndexer& call, size_t tokens) {
    const size_t words = call.row_words(), heads = tokens * call.heads;
    return kIndexBlock * words + (call.keys.type == CacheType::i8 ? heads * (kMaxQuadWords * words + 1) : 0);
}

// Float32 queries and float keys, which are widened to float32.
class FloatIndexKeys {
  public:
    explicit FloatIndexKeys(const IndexScores& a)
        : a_(a), width_(a.call.keys.width), query_(static_cast<const float*>(a.call.query)), keys_(a.memory) {}

    void read(const StoredRows& rows, size_t count) const { rows.transpose(count, 0, width_, keys_); }

    // The products of heads [head, head + R) of a token with V vectors of keys from key `first` of the block on.
    template <int R, int V>
    DECODESTEP_INLINE void multiply(size_t token, size_t head, size_t first, f32x16 (&out)[R][V]) const {
        const float *query = query_ + (token * a_.call.heads + head) * width_, *keys = keys_ + first * width_;
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) out[r][v] = broadcast(0.0f);
        for (size_t c = 0; c < width_; ++c) {
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) {
                f32x16 lanes = load(keys + (v * width_ + c) * kLanes);
                if constexpr (R > 1) keep_in_register(lanes);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) out[r][v] = fma(lanes, broadcast(query[r * width_ + c]), out[r][v]);
            }
        }
    }

    void scale(float*, const StoredRows&, KeyRange) const {}

  private:
    const IndexScores& a_;
    const size_t width_;
    const float* const query_;
    float* const keys_;  // of the block: for each sixteen, [columns][kLanes]
};

// Int8 queries and keys, in groups of four columns.
class ByteIndexKeys {
  public:
    explicit ByteIndexKeys(const IndexScores& a)
        : a_(a),
          words_(a.call.row_words()),
          keys_(a.memory),
          offsets_(reinterpret_cast<int32_t*>(keys_ + kIndexBlock * words_)),
          query_(offsets_ + a.tokens * a.call.heads) {
        const size_t width = a.call.keys.width, heads = a.tokens * a.call.heads;
        const int8_t* from = static_cast<const int8_t*>(a.call.query) + a.token * a.call.heads * width;
        for (size_t h = 0; h < heads; ++h, from += width) {
            int32_t sum = 0;
            for (size_t c = 0; c < width; ++c) sum += from[c];
            offsets_[h] = kUnsignedWeights ? -128 * sum : 0;
            for (size_t w = 0; w < words_; ++w) store_quad(query_ + (h * words_ + w) * kQuadWords, from + 4 * w);
        }
    }

    void read(const StoredRows& rows, size_t count) const {
        for (size_t j = 0; j < count; j += kLanes)
            transpose_rows<float>([&](size_t i) { return rows[j + i]; }, words_, keys_ + j * words_);
    }

    template <int R, int V>
    DECODESTEP_INLINE void multiply(size_t token, size_t head, size_t first, f32x16 (&out)[R][V]) const {
        const size_t row = (token - a_.token) * a_.call.heads + head, step = words_ * kQuadWords;
        const int32_t* query = query_ + row * step;
        const float* keys = keys_ + first * words_;
        i32x16 sums[R][V];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) sums[r][v] = broadcast_int(offsets_[row + r]);
        for (size_t w = 0; w < words_; ++w, query += kQuadWords) {
            I8Quads lanes[V];
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) {
                const i32x16 bits = load_bits(keys + (v * words_ + w) * kLanes);
                lanes[v] = i8_quads(kUnsignedWeights ? bits ^ broadcast_int(static_cast<int32_t>(0x80808080u)) : bits);
            }
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const I8Quads own = load_quads(query + r * step);
#pragma GCC unroll 8
                for (int v = 0; v < V; ++v) sums[r][v] = add_products(sums[r][v], lanes[v], own);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) out[r][v] = to_float(sums[r][v]);
    }

    // Multiplies the scores of some keys by the keys' scales.
    void scale(float* scores, const StoredRows& rows, KeyRange keys) const {
        const LightningIndexer& call = a_.call;
        if (call.keys.own_scales) {
            for (size_t j = 0; j < keys.count; ++j) {
                float own;
                std::memcpy(&own, rows[j] + call.keys.width, sizeof own);
                scores[j] *= own;
            }
            return;
        }
        const int64_t* table = call.block_table + call.sequence[a_.token] * call.blocks;
        for (size_t j = 0; j < keys.count; ++j) {
            const size_t at = keys.first + j;
            scores[j] *= call.key_scales[static_cast<size_t>(table[at / call.block_size]) * call.block_size +
                                         at % call.block_size];
        }
    }

  private:
    const IndexScores& a_;
    const size_t words_;
    float* const keys_;       // of the block: for each sixteen, [groups of four][kLanes]
    int32_t* const offsets_;  // what sums begin with, so that keys count as signed
    int32_t* const query_;    // [heads of all tokens, groups of four, kQuadWords]
};

template <class Keys>
void score_keys(const IndexScores& a) {
    const LightningIndexer& call = a.call;
    const int64_t* const table = call.block_table + call.sequence[a.token] * call.blocks;
    const Keys keys(a);
    StoredRows rows;
    for (size_t first = a.first; first < a.end; first += kIndexBlock) {
        const KeyRange block{first, std::min(kIndexBlock, a.end - first)};
        rows.find(call.keys, call.block_size, table, block);
        keys.read(rows, block.count);
        for (size_t t = 0; t < a.tokens; ++t) {
            float* const scores = a.scores + t * a.stride + (first - a.first);
            const float* const weights = call.weights + (a.token + t) * call.heads;
            std::fill_n(scores, whole_vectors(block.count), 0.0f);
            each_constant_piece<kProductRows>(call.heads, [&]<int R>(size_t head) {
                each_constant_piece<kProductVectors>(whole_vectors(block.count) / kLanes, [&]<int V>(size_t v) {
                    f32x16 products[R][V];
                    keys.template multiply<R, V>(a.token + t, head, v * kLanes, products);
#pragma GCC unroll 8
                    for (int i = 0; i < V; ++i) {
                        float* const at = scores + (v + i) * kLanes;
                        f32x16 score = load(at);
#pragma GCC unroll 8
                        for (int r = 0; r < R; ++r)
                            score = fma(broadcast(weights[head + r]), max(broadcast(0.0f), products[r][i]), score);
                        store(at, score);
                    }
                });
            });
            keys.scale(scores, rows, block);
        }
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
