#include "attention/lightning_indexer.h"

#include <cstdlib>

#include "attention/index_scores.h"
#include "attention/largest_scores.h"
#include "attention/lightning_indexer_tasks.h"
#include "core/parallel.h"
#include "core/thread_scratch.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

constexpr size_t kTasksAThread = 4;  // of one call, so that all threads end at about the same time
constexpr size_t kTileTokens = 4;    // enough to amortise transposing the keys
constexpr size_t kLeastPart = 1024;  // keys of a task, which take longer than waking a thread for it

constexpr size_t score_room(size_t keys) { return round_up(keys, kIndexBlock) + kLanes; }

}  // namespace

LightningIndexerTasks::LightningIndexerTasks(const LightningIndexer& call) : call_(call) {
    list_tiles();
    if (call.threads > 1 && tiles_.size() < kTasksAThread * static_cast<size_t>(call.threads)) list_parts();
}

void LightningIndexerTasks::list_tiles() {
    const int64_t *sequence = call_.sequence, *visible = call_.visible;
    for (size_t t = 0, tokens; t < call_.tokens; t += tokens) {
        for (tokens = 1; tokens < kTileTokens && t + tokens < call_.tokens; ++tokens)
            if (sequence[t + tokens] != sequence[t]) break;
        const int64_t longest = *std::max_element(visible + t, visible + t + tokens);
        tiles_.push_back({t, tokens, static_cast<size_t>(longest)});
    }
}

void LightningIndexerTasks::list_parts() {
    size_t floats = 0, keys = 0;
    for (const Tile& tile : tiles_) keys += tile.longest;
    const size_t tasks = kTasksAThread * static_cast<size_t>(call_.threads),
                 size = std::max(kLeastPart, round_up(ceil_div(keys, tasks), kIndexBlock));
    for (size_t i = 0; i < tiles_.size(); ++i) {
        const Tile& tile = tiles_[i];
        first_score_.push_back(floats);
        floats += tile.tokens * score_room(tile.longest);
        for (size_t first = 0; first < tile.longest; first += size)
            parts_.push_back({i, first, std::min(first + size, tile.longest)});
        for (size_t t = 0; t < tile.tokens; ++t) selections_.push_back({i, t});
    }
    if (parts_.empty()) return selections_.clear();  // no token sees a key
    scores_ = std::make_unique_for_overwrite<float[]>(floats);
}

void LightningIndexerTasks::score(size_t task) const {
    if (!parts_.empty()) {
        const auto& [number, first, end] = parts_[task];
        const Tile& tile = tiles_[number];
        const ThreadScratch scratch(index_memory(call_, tile.tokens));
        const size_t stride = score_room(tile.longest);
        return score(tile, first, end, scores_.get() + first_score_[number] + first, stride, scratch.data());
    }
    const Tile& tile = tiles_[task];
    const size_t stride = score_room(tile.longest);
    const ThreadScratch scratch(tile.tokens * stride + index_memory(call_, tile.tokens));
    score(tile, 0, tile.longest, scratch.data(), stride, scratch.data() + tile.tokens * stride);
    for (size_t t = 0; t < tile.tokens; ++t) select(tile.token + t, scratch.data() + t * stride);
}

void LightningIndexerTasks::select(size_t task) const {
    const auto& [number, token] = selections_[task];
    const Tile& tile = tiles_[number];
    select(tile.token + token, scores_.get() + first_score_[number] + token * score_room(tile.longest));
}

void LightningIndexerTasks::score(const Tile& tile, size_t first, size_t end, float* scores, size_t stride,
                                  float* memory) const {
    const IndexScores part{call_, tile.token, tile.tokens, first, end, scores, stride, memory};
    if (call_.keys.type == CacheType::i8) return decodestep::score_byte_keys(part);
    score_keys<FloatIndexKeys>(part);
}

void LightningIndexerTasks::select(size_t token, const float* scores) const {
    const size_t count = call_.count;
    int32_t* const selected = call_.selected + token * count;
    LargestScores::list(scores, static_cast<size_t>(call_.visible[token]), count, selected);
    if (call_.ordered) LargestScores::order(scores, selected, count);
    if (call_.values)
        for (size_t i = 0; i < count; ++i)
            call_.values[token * count + i] = selected[i] < 0 ? kMinusInfinity : scores[selected[i]];
    if (!call_.slots) return;
    const int64_t* const table = call_.slot_table + call_.sequence[token] * call_.blocks;
    for (size_t i = 0; i < count && selected[i] >= 0; ++i) {
        const auto [block, row] = std::div(int64_t{selected[i]}, static_cast<int64_t>(call_.block_size));
        call_.slots[token * count + i] = table[block] * static_cast<int64_t>(call_.block_size) + row;
    }
}

void lightning_indexer(const LightningIndexer& a) {
    const LightningIndexerTasks tasks(a);
    parallel_for(tasks.score_count(), a.threads, [&](size_t task) { tasks.score(task); });
    parallel_for(tasks.select_count(), a.threads, [&](size_t task) { tasks.select(task); });
}

}  // namespace decodestep::DECODESTEP_BUILD
