#include "attention/mla_attention.h"

#include <optional>

#include "attention/attention_tile.h"
#include "attention/keys_in_lanes.h"
#include "attention/mla_attention_tasks.h"
#include "attention/shared_keys.h"
#include "attention/shared_splits.h"
#include "core/parallel.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

constexpr size_t kTasksAThread = 4;  // of one call, so that all threads end at about the same time
constexpr size_t kMaxTileRows = 48;  // enough to amortise reading the keys, few enough for the second-level cache

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

MlaAttentionTasks::MlaAttentionTasks(const MlaAttention& call) : call_(call), width_(call.kv.width / call.groups) {
    list_tiles();
    if (call.threads > 1 && tiles_.size() < kTasksAThread * static_cast<size_t>(call.threads)) list_splits();
}

void MlaAttentionTasks::list_tiles() {
    const MlaAttention& a = call_;
    const bool shares = a.shares_blocks && a.groups == 1;
    const SharedSplits order(
        {a.tokens, a.sequence, a.lengths, shares ? a.block_table : nullptr, a.blocks, a.block_size}, false);
    const size_t in_group = a.heads / a.groups, pieces = ceil_div(in_group, kMaxTileRows),
                 heads = pieces == 1 ? in_group : whole_vectors(ceil_div(in_group, pieces)),
                 most_tokens = std::max<size_t>(1, kMaxTileRows / heads);
    for (size_t t = 0, tokens; t < a.tokens; t += tokens) {
        for (tokens = 1; tokens < most_tokens && t + tokens < a.tokens && order.with_previous(t + tokens) > 0;)
            ++tokens;
        // Few rows: one tile for all groups, which reads the cache in memory order.
        const size_t groups =
            tokens * a.heads <= kMaxTileRows && a.lengths[t] > static_cast<int64_t>(2 * kSplitKeys) ? a.groups : 1;
        for (size_t g = 0; g < a.groups; g += groups)
            for (size_t h = 0; h < in_group; h += heads) {
                const AttentionRows rows{t, tokens, g, groups, h, std::min(heads, in_group - h)};
                Tile& tile = tiles_.emplace_back(Tile{rows, {}});
                order.each_section(t, t + tokens, 0, [&](const SharedSection& shared) {
                    TileSection section{rows, shared.from, 0};
                    section.rows.token = shared.first, section.rows.tokens = shared.end - shared.first;
                    const size_t until = std::min(shared.until, splits_of(section.rows));
                    if (until > shared.from) tile.sections.push_back({section.rows, shared.from, until - shared.from});
                });
            }
    }
}

void MlaAttentionTasks::list_splits() {
    size_t most = 0, steps = 0, count = 0;
    for (const Tile& tile : tiles_)
        for (const TileSection& section : tile.sections) {
            most = std::max(most, section.first + section.count);
            steps += section.count;
            count += section.count * section.rows.count();
        }
    if (most <= 1) return;
    records_ = std::make_unique_for_overwrite<float[]>(PartialSoftmaxes::floats(count, width_));
    PartialSoftmaxes free{records_.get(), width_};
    for (size_t i = 0; i < tiles_.size(); ++i) {
        std::vector<PartialSoftmaxes>& of_tile = partials_.emplace_back();
        for (const TileSection& section : tiles_[i].sections) {
            of_tile.push_back(free);
            free = free.from(section.count * section.rows.count());
        }
        for (size_t row = 0; row < tiles_[i].rows.count(); ++row) merges_.push_back({i, row});
    }
    // A task's splits are adjacent, so that a thread prefetches the next one. All tiles take the same splits one after
    // another, because they may read the same pages.
    const size_t in_task = std::max<size_t>(1, steps / (kTasksAThread * static_cast<size_t>(call_.threads)));
    for (size_t first = 0; first < most; first += in_task)
        for (size_t i = 0; i < tiles_.size(); ++i)
            for (size_t s = 0; s < tiles_[i].sections.size(); ++s) {
                const TileSection& section = tiles_[i].sections[s];
                const size_t from = std::max(first, section.first),
                             end = std::min(first + in_task, section.first + section.count);
                if (from >= end) continue;
                const size_t before = (from - section.first) * section.rows.count();
                tasks_.push_back({&tiles_[i], {section.rows, from, end - from}, partials_[i][s].from(before).records});
            }
}

void MlaAttentionTasks::attend(size_t task) const {
    if (tasks_.empty()) {
        const auto& [rows, sections] = tiles_[task];
        return attend_tile({call_, rows, sections.data(), sections.size(), nullptr});
    }
    const Task& of_splits = tasks_[task];
    attend_tile({call_, of_splits.tile->rows, &of_splits.section, 1, of_splits.partials});
}

void MlaAttentionTasks::merge(size_t task) const {
    const auto& [number, row] = merges_[task];
    const auto& [rows, sections] = tiles_[number];
    std::optional<PartialSoftmax> merged;
    for (size_t s = 0; s < sections.size(); ++s) {
        const TileSection& section = sections[s];
        if (!section.rows.has(rows.token_of(row))) continue;
        const size_t own = row - section.rows.first_in(rows);
        for (size_t split = 0; split < section.count; ++split) {
            const PartialSoftmax next = partials_[number][s][split * section.rows.count() + own];
            merged ? merged->merge(next) : void(merged.emplace(next));
        }
    }
    finish_row(call_, rows, row, *merged);
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
