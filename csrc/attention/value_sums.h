// The second product of a block of keys: a group's values times the weights of its rows.
#pragma once

#include "attention/block_scores.h"
#include "attention/key_prefetcher.h"

namespace decodestep::DECODESTEP_BUILD {

// The vectors of values that are multiplied at a time with many rows.
constexpr int kValueVectors = vectors_beside(kProductRows);

class ValueSums {
  public:
    // scores: after `weigh`; partials: of the group's rows, whose sums of values are added to.
    ValueSums(const AttentionRows& rows, const BlockScores& scores, PartialSoftmaxes partials,
              KeyPrefetcher& next_block)
        : rows_(rows), scores_(scores), partials_(partials), next_block_(next_block) {}

    // Adds `width` columns of values, those of key j at row(j), C vectors at a time.
    // copy: null, or memory for [kBlockKeys][C vectors] of float32, to which values are copied when they are first
    // read, because rows at a power-of-two distance would evict each other from the first-level cache.
    template <CacheType type, int C, bool copies = false, class Row>
    void add(const Row& row, size_t width, float* copy = nullptr) const {
        constexpr int rows = rows_beside(C);
        size_t c = 0;
        for (; c + C * kLanes <= width; c += C * kLanes) add_columns<type, rows, C, copies>(row, c, kLanes, copy);
        for (; c + kLanes <= width; c += kLanes) add_columns<type, rows, 1, copies>(row, c, kLanes, copy);
        if (c < width) add_columns<type, 1, 1, copies>(row, c, width - c, copy);
    }

    // How often the sums of a block, with C vectors at a time, advance the prefetcher.
    static size_t advances(const TileCall& call, int C) {
        return ceil_div(call.width, kLanes * static_cast<size_t>(C)) *
               ceil_div(call.rows.in_group(), static_cast<size_t>(rows_beside(C)));
    }

  private:
    // Tokens that see the same keys of the block are summed together. A weight of zero would not exclude a key that a
    // token does not see, because it may be NaN.
    template <CacheType type, int most_rows, int C, bool copies, class Row>
    DECODESTEP_INLINE void add_columns(const Row& row, size_t c, size_t lanes, float* copy) const {
        size_t copied = 0;  // keys
        for (size_t t = 0, end; t < rows_.tokens; t = end) {
            const size_t n = scores_.seen(t), first = t * rows_.heads;
            for (end = t + 1; end < rows_.tokens && scores_.seen(end) == n;) ++end;
            if (n == 0) continue;
            each_constant_piece<most_rows>((end - t) * rows_.heads, [&]<int R>(size_t r) {
                r += first;
                next_block_.advance();
                const auto add = [&]<bool keeps>(const auto& values) {
                    add_values<type, R, C, keeps>(values, lanes, scores_.weights(r), n, scores_.rescale(r),
                                                  partials_[r].values() + c, PartialSoftmax::floats(partials_.width),
                                                  copy);
                };
                const auto stored = [&](size_t j) { return row(j) + c * value_bytes(type); };
                if constexpr (copies) {
                    if (n <= copied)
                        return add.template operator()<false>(
                            [&](size_t j) { return reinterpret_cast<const uint8_t*>(copy + j * C * kLanes); });
                    copied = n;
                }
                add.template operator()<copies>(stored);
            });
        }
    }

    const AttentionRows& rows_;
    const BlockScores& scores_;
    const PartialSoftmaxes partials_;
    KeyPrefetcher& next_block_;
};

}  // namespace decodestep::DECODESTEP_BUILD
