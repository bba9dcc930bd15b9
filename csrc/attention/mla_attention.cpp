#include "attention/mla_attention.h"

#include <memory>
#include <vector>

#include "attention/attention_tile.h"
#include "core/parallel.h"

namespace decodestep::DECODESTEP_ISA {
namespace {

constexpr size_t kMostRows = 48;  // of a tile: enough to pay for the transposed keys, few enough for the second cache

// The rows of the call, cut into tiles: tokens that follow each other in one sequence go together.
std::vector<AttentionRows> tiles_of(const MlaAttention& a) {
    const size_t in_group = a.heads / a.groups, pieces = (in_group + kMostRows - 1) / kMostRows,
                 heads = (in_group + pieces - 1) / pieces, most_tokens = std::max<size_t>(1, kMostRows / heads);
    std::vector<AttentionRows> tiles;
    for (size_t t = 0, tokens; t < a.tokens; t += tokens) {
        for (tokens = 1; tokens < most_tokens && t + tokens < a.tokens; ++tokens)
            if (a.sequence[t + tokens] != a.sequence[t]) break;
        // Few rows: all groups together, so that the cache is read in the order of memory.
        const size_t groups =
            tokens * a.heads <= kMostRows && a.lengths[t] > static_cast<int64_t>(2 * kSplitKeys) ? a.groups : 1;
        for (size_t g = 0; g < a.groups; g += groups)
            for (size_t h = 0; h < in_group; h += heads)
                tiles.push_back({t, tokens, g, groups, h, std::min(heads, in_group - h)});
    }
    return tiles;
}

// The result of a tile from the partial results of its splits, which lie one behind the other.
void finish(const MlaAttention& a, const AttentionRows& rows, size_t splits, Partials partials) {
    for (size_t r = 0; r < rows.count(); ++r) {
        const Partial sum = partials[r];
        for (size_t s = 1; s < splits; ++s) sum.add(partials[s * rows.count() + r]);
        sum.finish(a.kv.scale ? a.kv.scale + rows.group_of(r) * sum.width : nullptr,
                   a.out + rows.place_of(r, a.groups, a.heads / a.groups) * sum.width);
    }
}

// Many tiles: a task is a tile, which adds one split after the other.
void attend_tiles(const MlaAttention& a, const std::vector<AttentionRows>& tiles) {
    parallel_for(tiles.size(), a.threads, [&](size_t task) {
        const AttentionRows& rows = tiles[task];
        const size_t width = a.kv.width / a.groups, size = Partials::floats(rows.count(), width);
        float* scratch = thread_scratch(2 * size + AttentionTile::scratch_floats(a, rows));
        const Partials sums{scratch, width}, partials{scratch + size, width};
        AttentionTile tile(a, rows, scratch + 2 * size);
        tile.attend(0, sums);
        for (size_t split = 1; split < tile.splits(); ++split) {
            tile.attend(split, partials);
            for (size_t r = 0; r < rows.count(); ++r) sums[r].add(partials[r]);
        }
        finish(a, rows, 1, sums);
    });
}

// Few tiles: a task is one split of a tile, and the splits of a row are added at the end.
void attend_splits(const MlaAttention& a, const std::vector<AttentionRows>& tiles) {
    struct Task {
        size_t tile, split;
        Partials partials;
    };
    std::vector<size_t> splits, place;
    size_t count = 0, most = 0;
    for (const AttentionRows& rows : tiles) {
        splits.push_back(key_splits(*std::max_element(a.lengths + rows.token, a.lengths + rows.token + rows.tokens)));
        place.push_back(count);
        count += splits.back() * rows.count();
        most = std::max(most, splits.back());
    }
    const size_t width = a.kv.width / a.groups;
    const auto records = std::make_unique_for_overwrite<float[]>(Partials::floats(count, width));
    const Partials all{records.get(), width};
    std::vector<Task> tasks;
    for (size_t split = 0; split < most; ++split)  // neighbours in the cache are neighbours in time
        for (size_t i = 0; i < tiles.size(); ++i)
            if (split < splits[i]) tasks.push_back({i, split, all.from(place[i] + split * tiles[i].count())});
    parallel_for(tasks.size(), a.threads, [&](size_t i) {
        const AttentionRows& rows = tiles[tasks[i].tile];
        AttentionTile(a, rows, thread_scratch(AttentionTile::scratch_floats(a, rows)))
            .attend(tasks[i].split, tasks[i].partials);
    });
    parallel_for(tiles.size(), a.threads, [&](size_t i) { finish(a, tiles[i], splits[i], all.from(place[i])); });
}

}  // namespace

void mla_attention(const MlaAttention& a) {
    const std::vector<AttentionRows> tiles = tiles_of(a);
    if (tiles.size() >= 4 * static_cast<size_t>(a.threads))
        attend_tiles(a, tiles);
    else
        attend_splits(a, tiles);
}

}  // namespace decodestep::DECODESTEP_ISA
