// The scores of a tile's rows for a block of keys, which become the weights of a softmax, and what the rows have seen
// of it: their maxima and sums of weights.
//
// A group's scores have its rows in the lanes, [keys][lanes], or, for a few rows, keys: [rows][kBlockKeys]. Both forms
// give the same bits.
// NaN: a key that a token does not see has a weight of zero, whatever its score.
#pragma once

#include <algorithm>

#include "attention/attention_products.h"
#include "attention/partial_softmax.h"
#include "attention/tile_splits.h"

namespace decodestep::DECODESTEP_BUILD {

// Vector loads of sixteen rows may run past the last one; arrays of rows are padded for this.
constexpr size_t padded_rows(size_t n) { return n + kLanes - 1; }

class BlockScores {
  public:
    static size_t floats(const AttentionRows& rows) {
        return kBlockKeys * whole_vectors(rows.in_group()) + 2 * padded_rows(rows.count()) +
               padded_rows(rows.in_group());
    }

    // lengths: of each token of the call. memory: floats(rows), used exclusively by the object during its lifetime.
    BlockScores(const AttentionRows& rows, bool keys_in_lanes, const int64_t* lengths, float scale, float* memory)
        : rows_(rows),
          keys_in_lanes_(keys_in_lanes),
          lengths_(lengths + rows.token),
          lanes_(whole_vectors(rows.in_group())),
          scale_(scale),
          scores_(memory),
          maxima_(scores_ + kBlockKeys * lanes_),
          weight_sums_(maxima_ + padded_rows(rows.count())),
          rescale_(weight_sums_ + padded_rows(rows.count())) {}

    // Before a split's first block: no row has seen a key.
    void begin_split() {
        std::fill_n(maxima_, rows_.count(), kLowest);
        std::fill_n(weight_sums_, rows_.count(), 0.0f);
    }
    void begin_block(KeyRange keys) { keys_ = keys; }
    const KeyRange& keys() const { return keys_; }  // of the current block

    // The scores of the current group, to be added to after `begin_group`, and its weights after `weigh`.
    float* scores() const { return scores_; }
    void begin_group() {
        std::fill_n(scores_, keys_in_lanes_ ? rows_.in_group() * kBlockKeys : keys_.count * lanes_, 0.0f);
    }

    // Converts the scores of group g to weights e^(scale * score - maximum so far).
    void weigh(size_t g) {
        if (keys_in_lanes_)
            weigh_rows(g);
        else
            weigh_lanes(g);
    }

    // After weigh: the weights of rows from r on, and the factors for the rows' sums over earlier blocks.
    Weights weights(size_t r) const {
        return keys_in_lanes_ ? Weights{scores_ + r * kBlockKeys, kBlockKeys, 1} : Weights{scores_ + r, 1, lanes_};
    }
    const float* rescale(size_t r) const { return rescale_ + r; }

    // The number of keys of the block that a token of the tile sees.
    size_t seen(size_t token) const { return keys_.below(static_cast<size_t>(lengths_[token])); }

    void finish_split(PartialSoftmaxes partials) const {
        for (size_t r = 0; r < rows_.count(); ++r) {
            partials[r].maximum() = maxima_[r];
            partials[r].weight_sum() = weight_sums_[r];
        }
    }

  private:
    void weigh_lanes(size_t g) {
        const f32x16 scale = broadcast(scale_);
        const size_t n = keys_.count, first = g * rows_.in_group();
        for (size_t i = 0; i < n * lanes_; i += kLanes) store(scores_ + i, load(scores_ + i) * scale);
        fill_unseen(kMinusInfinity);
        for (size_t r = 0; r < rows_.in_group(); r += kLanes) {
            float* maxima = maxima_ + first + r;
            const f32x16 before = load(maxima);
            f32x16 highest = before;
            for (size_t j = 0; j < n; ++j) highest = max(load(scores_ + j * lanes_ + r), highest);
            store_rows(maxima, r, highest);
            store(rescale_ + r, exp(before - highest));
            for (float* s = scores_ + r; s < scores_ + n * lanes_; s += lanes_) store(s, exp(load(s) - highest));
        }
        fill_unseen(0.0f);
        for (size_t r = 0; r < rows_.in_group(); r += kLanes) {
            float* sums = weight_sums_ + first + r;
            store_rows(sums, r, load(sums) * load(rescale_ + r) + sum_of_weights(r));
        }
    }

    void weigh_rows(size_t g) {
        const size_t rows = rows_.in_group();
        float *maxima = maxima_ + g * rows, *sums = weight_sums_ + g * rows;
        for (size_t r = 0; r < rows; ++r) {
            float* scores = scores_ + r * kBlockKeys;
            const size_t n = seen(r / rows_.heads);
            for (size_t j = 0; j < n; j += kLanes) store(scores + j, load(scores + j) * broadcast(scale_));
            const float highest = largest(scores, n);
            rescale_[r] = highest > maxima[r] ? highest : maxima[r];
        }
        const f32x16 before = load(maxima), highest = load(rescale_);
        store_rows(maxima, 0, highest);
        store(rescale_, exp(before - highest));
        for (size_t r = 0; r < rows; ++r) {
            float* scores = scores_ + r * kBlockKeys;
            const size_t n = seen(r / rows_.heads);
            f32x16 total = broadcast(0.0f);
            for (size_t j = 0; j < n; j += kLanes) {
                store(scores + j, exp(load(scores + j) - broadcast(maxima[r])));
                for (size_t i = n; i < j + kLanes; ++i) scores[i] = 0.0f;
                total = total + load(scores + j);
            }
            sums[r] = sums[r] * rescale_[r] + sum(total);
        }
    }

    // The sums of weights of sixteen rows from r on, in the order in which `sum` adds the lanes of a vector of keys.
    f32x16 sum_of_weights(size_t r) const {
        f32x16 total[kLanes];
        for (size_t i = 0; i < kLanes; ++i) {
            total[i] = broadcast(0.0f);
            for (size_t j = i; j < keys_.count; j += kLanes) total[i] = total[i] + load(scores_ + j * lanes_ + r);
        }
        for (size_t half = kLanes / 2; half > 0; half /= 2)
            for (size_t i = 0; i < half; ++i) total[i] = total[i] + total[i + half];
        return total[0];
    }

    // Stores the lanes that are rows of the group, from row r on.
    void store_rows(float* to, size_t r, f32x16 values) const {
        store_partial(to, values, std::min<size_t>(kLanes, rows_.in_group() - r));
    }

    // Sets the scores of keys that their token does not see.
    void fill_unseen(float value) {
        for (size_t t = 0; t < rows_.tokens; ++t)
            for (size_t j = seen(t); j < keys_.count; ++j)
                std::fill_n(scores_ + j * lanes_ + t * rows_.heads, rows_.heads, value);
    }

    const AttentionRows rows_;
    const bool keys_in_lanes_;
    const int64_t* const lengths_;  // of the tile's tokens
    const size_t lanes_;            // the rows of a group in whole vectors
    const float scale_;
    float *const scores_, *const maxima_, *const weight_sums_, *const rescale_;
    KeyRange keys_;
};

}  // namespace decodestep::DECODESTEP_BUILD
