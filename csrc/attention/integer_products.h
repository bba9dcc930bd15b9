// The products of int8 keys, each with its own scale, as integers, which have a higher throughput than floats.
//
// Queries are rounded to int16, as are the weights of a block's keys times the keys' scales, each row relative to its
// own largest magnitude. Sums of pair products are exact in 32 bits, so their order does not matter.
#pragma once

#include "attention/block_scores.h"
#include "attention/key_prefetcher.h"
#include "attention/partial_softmax.h"
#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {

// The number of rows that share a vector of pairs: their sums, that vector and a product stay in registers, and there
// are enough sums to hide the latency of adding to one.
constexpr int kPairRows = kManyRegisters ? 16 : 6;

// Calls sink(r, sum) with the sum of vectors of pairs times the pairs of row r, which are pair_step words apart.
template <int R, class Sink>
DECODESTEP_INLINE void sum_pairs(const int32_t* vectors, const int32_t* rows, size_t row_step, size_t pair_step,
                                 size_t pairs, Sink&& sink) {
    i32x16 total[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) total[r] = broadcast_int(0);
    for (size_t p = 0; p < pairs; ++p) {
        const i32x16 lanes = load_bits(vectors + p * kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) total[r] = add_pair_products(total[r], lanes, broadcast_int(rows[r * row_step]));
        rows += pair_step;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sink(r, total[r]);
}

// The keys of one block at a time, for `lanes` rows of queries, a multiple of 16. width: of a key, a multiple of 32.
class IntegerProducts {
  public:
    static size_t floats(size_t width, size_t lanes) {
        return width / 2 * lanes + 2 * lanes + kBlockKeys / 2 * lanes + word_count(width) + kBlockKeys;
    }

    // scratch: floats(width, lanes), used exclusively by the object during its lifetime.
    IntegerProducts(size_t width, size_t lanes, float* scratch)
        : width_(width),
          lanes_(lanes),
          query_scale_(scratch),
          weight_scale_(query_scale_ + lanes),
          key_scale_(weight_scale_ + lanes),
          query_(reinterpret_cast<int32_t*>(key_scale_ + kBlockKeys)),
          weight_(query_ + width / 2 * lanes),
          words_(weight_ + kBlockKeys / 2 * lanes) {}

    // Rounds sixteen queries, from row `first` on: [width][kLanes]. A value that is not finite makes its row's scores
    // NaN.
    void round_queries(size_t first, const float* queries) {
        f32x16 most = broadcast(0.0f), spread = most;
        for (size_t c = 0; c < width_; ++c) {
            const f32x16 values = load(queries + c * kLanes);
            most = max(magnitude(values), most);
            spread = spread + (values - values);
        }
        // So that the sums over a whole key do not overflow.
        const float bound = std::min(32767.0f, static_cast<float>(0x7fffffff / (128 * width_)));
        const f32x16 factor = broadcast(bound) / most;
        int32_t* out = query_ + first * (width_ / 2);
        for (size_t c = 0; c < width_; c += 2, out += kLanes) {
            const float* pair = queries + c * kLanes;
            store_bits(out, pair_of(load(pair) * factor, load(pair + kLanes) * factor, bound));
        }
        store(query_scale_ + first, most / broadcast(bound) + spread);
    }

    // For the block's n keys.
    void read_scales(const StoredRows& keys, size_t n) {
        for (size_t j = 0; j < n; ++j) std::memcpy(key_scale_ + j, keys[j] + width_, sizeof(float));
    }

    // Adds key . query to the block's scores.
    void add_scores(const StoredRows& keys, const BlockScores& block, KeyPrefetcher& next_block) const {
        const size_t width = width_, pairs = width / 2, lanes = lanes_;
        float* const scores = block.scores();
        int32_t* const words = words_;
        each_constant_piece<kPairRows>(block.keys().count, [&]<int R>(size_t j) {
            next_block.advance();
            for (size_t r = 0; r < R; ++r) {
                const uint8_t* const key = keys[j + r];
                for (size_t c = 0; c < width; c += 2 * kLanes)
                    store_bits(words + r * pairs + c / 2, int8_pairs(key + c));
            }
            for (size_t v = 0; v < lanes; v += kLanes) {
                const f32x16 scale = load(query_scale_ + v);
                sum_pairs<R>(query_ + v * pairs, words, pairs, 1, pairs, [&](size_t r, i32x16 total) {
                    float* score = scores + (j + r) * lanes + v;
                    store(score, fma(to_float(total), scale * broadcast(key_scale_[j + r]), load(score)));
                });
            }
        });
    }

    // Rounds the block's weights, which are at least 0, times the keys' scales. A product that is NaN becomes 0.
    void round_weights(const BlockScores& block) {
        const size_t n = block.keys().count;
        const float* const weights = block.scores();
        for (size_t v = 0; v < lanes_; v += kLanes) {
            const auto product = [&](size_t j) {
                return j < n ? load(weights + j * lanes_ + v) * broadcast(key_scale_[j]) : broadcast(0.0f);
            };
            f32x16 most = broadcast(0.0f);
            for (size_t j = 0; j < n; ++j) most = max(product(j), most);
            const f32x16 factor = broadcast(32767.0f) / most;
            for (size_t j = 0; j < n; j += 2)
                store_bits(weight_ + j / 2 * lanes_ + v,
                           pair_of(product(j) * factor, product(j + 1) * factor, 32767.0f));
            store(weight_scale_ + v, most / broadcast(32767.0f));
        }
    }

    // The sums of the partials of `rows` rows, times rescale, plus the rounded weights times the keys' columns from
    // `first` on, as many as a partial has: a multiple of sixteen.
    void add_values(const StoredRows& keys, size_t first, size_t rows, const BlockScores& block,
                    PartialSoftmaxes partials, KeyPrefetcher& next_block) const {
        const size_t n = block.keys().count;
        const float* const rescale = block.rescale(0);
        int32_t* const words = words_;
        for (size_t c = 0; c < partials.width; c += kLanes) {
            for (size_t j = 0; j < n; j += 2)
                store_bits(words + j / 2 * kLanes, byte_pairs(keys[j] + first + c, keys[j + 1] + first + c));
            each_constant_piece<kPairRows>(rows, [&]<int R>(size_t from) {
                next_block.advance();
                sum_pairs<R>(words, weight_ + from, 1, lanes_, (n + 1) / 2, [&](size_t r, i32x16 total) {
                    float* sum = partials[from + r].values() + c;
                    const f32x16 values = to_float(total) * broadcast(weight_scale_[from + r]);
                    store(sum, fma(load(sum), broadcast(rescale[from + r]), values));
                });
            });
        }
    }

    // How often both products of a block of keys, for `rows` rows of queries, advance the prefetcher.
    size_t advances(size_t rows) const {
        return ceil_div(kBlockKeys, kPairRows) + width_ / kLanes * ceil_div(rows, kPairRows);
    }

  private:
    static size_t word_count(size_t width) { return std::max(kPairRows * width / 2, kBlockKeys / 2 * kLanes); }

    // Both values, rounded to nearest and clamped to the bound, as a pair of int16; NaN becomes 0.
    static i32x16 pair_of(f32x16 low, f32x16 high, float bound) {
        const auto whole = [&](f32x16 x) {
            return round_to_int(max(broadcast(-bound), min(broadcast(bound), x)));  // of NaN and a bound: NaN
        };
        return (whole(low) & broadcast_int(0xffff)) | shift_left<16>(whole(high));
    }

    const size_t width_, lanes_;
    float *query_scale_, *weight_scale_, *key_scale_;
    int32_t *query_, *weight_, *words_;
};

}  // namespace decodestep::DECODESTEP_BUILD
