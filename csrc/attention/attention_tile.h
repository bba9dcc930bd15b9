// Absorbed attention of a few rows over one split of the keys. A row is one head of one token.
//
// Reads the queries and the pages of one sequence; writes one PartialSoftmax per row.
//
// Determinism: keys are divided into blocks of 64 and splits of 256, from the start of the sequence. Within a block a
// score is one ascending sum for each 64 columns, and a column of the result is one ascending sum over the keys. The
// blocks of a split share one running maximum; each split starts from an empty partial, and partials are merged in the
// order of the keys. So a row's bits depend only on its own query and keys, not on the other rows of its tile.
// NaN: a key that a token does not see is not multiplied, so its NaN does not spread.
#pragma once

#include <algorithm>

#include "attention/block_scores.h"
#include "attention/key_prefetcher.h"
#include "core/thread_scratch.h"

namespace decodestep::DECODESTEP_BUILD {

// Keys: the form of a block of keys, which multiplies it with queries and weights.
template <class Keys>
class AttentionTile {
  public:
    static size_t scratch_floats(const TileCall& call) { return Keys::floats(call) + BlockScores::floats(call.rows); }

    // call: must outlive the tile; scratch: scratch_floats(call) floats, used exclusively by the tile.
    AttentionTile(const TileCall& call, float* scratch)
        : rows_(call.rows),
          longest_(*std::max_element(call.a.lengths + rows_.token, call.a.lengths + rows_.token + rows_.tokens)),
          keys_(call, scratch),
          scores_(rows_, Keys::kInLanes, call.a.lengths, call.a.scale, scratch + Keys::floats(call)),
          next_block_(call) {}

    // Computes one partial per row. A row that sees no key of the split gets the empty partial.
    void attend(size_t split, PartialSoftmaxes partials) {
        const size_t begin = split * kSplitKeys, end = std::min(longest_, begin + kSplitKeys);
        prefetch_from(begin, 1);
        next_block_.advance();
        for (size_t r = 0; r < rows_.count(); ++r) partials[r].clear();
        scores_.begin_split();
        for (size_t first = begin; first < end; first += kBlockKeys) {
            const KeyRange block{first, std::min(kBlockKeys, end - first)};
            scores_.begin_block(block);
            keys_.begin_block(block);
            prefetch_from(first + kBlockKeys, rows_.groups * keys_.advances());
            for (size_t g = 0; g < rows_.groups; ++g) {
                scores_.begin_group();
                keys_.score(g, scores_, next_block_);
                scores_.weigh(g);
                keys_.sum_values(g, scores_, partials.from(g * rows_.in_group()), next_block_);
            }
        }
        scores_.finish_split(partials);
    }

  private:
    // The block of keys from `first` on is prefetched by this many calls of `advance`, in the products before it.
    void prefetch_from(size_t first, size_t advances) {
        next_block_.aim(first, std::min(longest_, first + kBlockKeys), advances);
    }

    const AttentionRows& rows_;
    const size_t longest_;  // the most keys that a token sees
    Keys keys_;
    BlockScores scores_;
    KeyPrefetcher next_block_;
};

// Writes the result of a row of a tile, whose partial is after all of its keys.
inline void finish_row(const MlaAttention& a, const AttentionRows& rows, size_t row, const PartialSoftmax& partial) {
    const size_t place = rows.place_of(row, a.groups, a.heads / a.groups);
    if (a.sinks) partial.merge_sink(a.sinks[place % a.heads]);
    partial.finish(a.kv.scale ? a.kv.scale + rows.group_of(row) * partial.width : nullptr,
                   a.out + place * partial.width);
    if (a.lse) a.lse[place] = partial.log_sum();
    if (a.largest) a.largest[place] = partial.maximum() > kLowest ? partial.maximum() : kMinusInfinity;
    if (a.sums) a.sums[place] = partial.weight_sum();
}

template <class Keys>
void attend_splits(const TileSplits& splits) {
    const size_t memory = AttentionTile<Keys>::scratch_floats({splits.call, splits.rows});
    if (splits.partials) {
        const TileSection& section = splits.sections[0];
        const TileCall call(splits.call, section.rows);
        const ThreadScratch scratch(memory);
        AttentionTile<Keys> tile(call, scratch.data());
        const PartialSoftmaxes partials{splits.partials, call.width};
        for (size_t i = 0; i < section.count; ++i)
            tile.attend(section.first + i, partials.from(i * section.rows.count()));
        return;
    }
    const size_t width = splits.call.kv.width / splits.call.groups,
                 size = PartialSoftmaxes::floats(splits.rows.count(), width);
    const ThreadScratch scratch(2 * size + memory);
    const PartialSoftmaxes merged{scratch.data(), width}, next{scratch.data() + size, width};
    for (size_t i = 0; i < splits.section_count; ++i) {
        const TileSection& section = splits.sections[i];
        const TileCall call(splits.call, section.rows);
        AttentionTile<Keys> tile(call, scratch.data() + 2 * size);
        const PartialSoftmaxes own = merged.from(section.rows.first_in(splits.rows));
        for (size_t split = section.first; split < section.first + section.count; ++split) {
            tile.attend(split, split == 0 ? own : next);
            for (size_t r = 0; split > 0 && r < section.rows.count(); ++r) own[r].merge(next[r]);
        }
    }
    for (size_t r = 0; r < splits.rows.count(); ++r) finish_row(splits.call, splits.rows, r, merged[r]);
}

}  // namespace decodestep::DECODESTEP_BUILD
