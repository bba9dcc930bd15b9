#include "attention/mla_attention.h"

#include "attention/attention_tile.h"
#include "attention/keys_in_lanes.h"
#include "attention/mla_attention_tasks.h"
#include "attention/shared_keys.h"
#include "core/parallel.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

constexpr size_t kTasksAThread = 4;  // of one call, so that all threads end at about the same time
constexpr size_t kMaxTileRows = 48;  // enough to amortise reading the keys, few enough for the second-level cache

// Divides the rows of the call into tiles. Adjacent tokens of a sequence share a tile, since they read the same keys.
std::vector<AttentionRows> tiles_of(const MlaAttention& a) {
    const size_t in_group = a.heads / a.groups, pieces = ceil_div(in_group, kMaxTileRows),
                 heads = pieces == 1 ? in_group : whole_vectors(ceil_div(in_group, pieces)),
                 most_tokens = std::max<size_t>(1, kMaxTileRows / heads);
    std::vector<AttentionRows> tiles;
    for (size_t t = 0, tokens; t < a.tokens; t += tokens) {
        for (tokens = 1; tokens < most_tokens && t + tokens < a.tokens; ++tokens)
            if (a.sequence[t + tokens] != a.sequence[t]) break;
        // Few rows: one tile for all groups, which reads the cache in memory order.
        const size_t groups =
            tokens * a.heads <= kMaxTileRows && a.lengths[t] > static_cast<int64_t>(2 * kSplitKeys) ? a.groups : 1;
        for (size_t g = 0; g < a.groups; g += groups)
            for (size_t h = 0; h < in_group; h += heads)
                tiles.push_back({t, tokens, g, groups, h, std::min(heads, in_group - h)});
    }
    return tiles;
}

// With the form of keys that suits the tile.
void attend_tile(const TileSplits& splits) {
    const PagedRows &kv = splits.call.kv, &kr = splits.call.kr;
    if (kv.own_scales) return decodestep::attend_byte_splits(splits);
    // The others read rows of plain values as they are.
    if (kv.nz() || kv.tile_scales > 0 || kv.float8) return attend_splits<CopiedKeys>(splits);
    if (splits.rows.in_group() <= kFewRows) return attend_splits<KeysInLanes>(splits);
    if (kv.type == CacheType::f32 && kr.type == CacheType::f32) return attend_splits<KeysInPlace>(splits);
    attend_splits<CopiedKeys>(splits);
}

}  // namespace

MlaAttentionTasks::MlaAttentionTasks(const MlaAttention& call)
    : call_(call), width_(call.kv.width / call.groups), tiles_(tiles_of(call)) {
    if (call.threads > 1 && tiles_.size() < kTasksAThread * static_cast<size_t>(call.threads)) list_splits();
}

void MlaAttentionTasks::list_splits() {
    size_t most = 0;
    for (const AttentionRows& rows : tiles_) {
        splits_.push_back(splits_of(rows));
        most = std::max(most, splits_.back());
    }
    if (most <= 1) return;
    std::vector<size_t> first;  // partial of each tile
    size_t count = 0;
    for (size_t i = 0; i < tiles_.size(); ++i) {
        first.push_back(count);
        count += splits_[i] * tiles_[i].count();
        for (size_t row = 0; row < tiles_[i].count(); ++row) merges_.push_back({i, row});
    }
    records_ = std::make_unique_for_overwrite<float[]>(PartialSoftmaxes::floats(count, width_));
    for (const size_t i : first) partials_.push_back(PartialSoftmaxes{records_.get(), width_}.from(i));
    // A task's splits are adjacent, so that a thread prefetches the next one. All tiles take the same splits one after
    // another, because they may read the same pages.
    const size_t in_task =
        std::max<size_t>(1, most * tiles_.size() / (kTasksAThread * static_cast<size_t>(call_.threads)));
    for (size_t split = 0; split < most; split += in_task)
        for (size_t i = 0; i < tiles_.size(); ++i)
            if (split < splits_[i]) tasks_.push_back({i, split, std::min(in_task, splits_[i] - split)});
}

void MlaAttentionTasks::attend(size_t task) const {
    if (tasks_.empty()) return attend_tile({call_, tiles_[task], 0, splits_of(tiles_[task]), nullptr});
    const auto& [tile, split, splits] = tasks_[task];
    const AttentionRows& rows = tiles_[tile];
    attend_tile({call_, rows, split, splits, partials_[tile].from(split * rows.count()).records});
}

void MlaAttentionTasks::merge(size_t task) const {
    const auto& [tile, row] = merges_[task];
    const AttentionRows& rows = tiles_[tile];
    const PartialSoftmax merged = partials_[tile][row];
    for (size_t split = 1; split < splits_[tile]; ++split) merged.merge(partials_[tile][split * rows.count() + row]);
    finish_row(call_, rows, row, merged);
}

size_t MlaAttentionTasks::splits_of(const AttentionRows& rows) const {
    const int64_t* lengths = call_.lengths + rows.token;
    return key_splits(static_cast<size_t>(*std::max_element(lengths, lengths + rows.tokens)));
}

void mla_attention(const MlaAttention& a) {
    const MlaAttentionTasks tasks(a);
    parallel_for(tasks.attend_count(), a.threads, [&](size_t task) { tasks.attend(task); });
    parallel_for(tasks.merge_count(), a.threads, [&](size_t task) { tasks.merge(task); });
}

}  // namespace decodestep::DECODESTEP_BUILD
