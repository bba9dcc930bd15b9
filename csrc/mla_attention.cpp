#include "mla_attention.h"

#include <memory>
#include <vector>

#include "attention_tile.h"
#include "parallel.h"

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
void finish(const MlaAttention& a, const AttentionRows& rows, size_t splits, float* partials) {
    const size_t width = a.kv.width / a.groups, stride = Partial::floats(width);
    for (size_t r = 0; r < rows.count(); ++r) {
        const Partial sum{partials + r * stride, width};
        for (size_t s = 1; s < splits; ++s) sum.add({partials + (s * rows.count() + r) * stride, width});
        sum.finish(a.kv.scale ? a.kv.scale + rows.group_of(r) * width : nullptr,
                   a.out + rows.place_of(r, a.groups, a.heads / a.groups) * width);
    }
}

// Many tiles: a task is a tile, which adds one split after the other.
void attend_tiles(const MlaAttention& a, const std::vector<AttentionRows>& tiles) {
    const size_t width = a.kv.width / a.groups, stride = Partial::floats(width);
    parallel_for(tiles.size(), a.threads, [&](size_t task) {
        const AttentionRows& rows = tiles[task];
        const size_t size = rows.count() * stride;
        float* partials = thread_scratch(2 * size + AttentionTile::scratch_floats(a, rows));
        AttentionTile tile(a, rows, partials + 2 * size);
        tile.attend(0, partials);
        for (size_t split = 1; split < tile.splits(); ++split) {
            tile.attend(split, partials + size);
            for (size_t r = 0; r < rows.count(); ++r)
                Partial{partials + r * stride, width}.add({partials + size + r * stride, width});
        }
        finish(a, rows, 1, partials);
    });
}

// Few tiles: a task is one split of a tile, and the splits of a row are added at the end.
void attend_splits(const MlaAttention& a, const std::vector<AttentionRows>& tiles) {
    struct Task {
        size_t tile, split;
        float* partials;
    };
    const size_t stride = Partial::floats(a.kv.width / a.groups);
    std::vector<size_t> splits, place;
    size_t floats = 0, most = 0;
    for (const AttentionRows& rows : tiles) {
        splits.push_back(key_splits(*std::max_element(a.lengths + rows.token, a.lengths + rows.token + rows.tokens)));
        place.push_back(floats);
        floats += splits.back() * rows.count() * stride;
        most = std::max(most, splits.back());
    }
    const auto partials = std::make_unique_for_overwrite<float[]>(floats);
    std::vector<Task> tasks;
    for (size_t split = 0; split < most; ++split)  // neighbours in the cache are neighbours in time
        for (size_t i = 0; i < tiles.size(); ++i)
            if (split < splits[i])
                tasks.push_back({i, split, partials.get() + place[i] + split * tiles[i].count() * stride});
    parallel_for(tasks.size(), a.threads, [&](size_t i) {
        const AttentionRows& rows = tiles[tasks[i].tile];
        AttentionTile(a, rows, thread_scratch(AttentionTile::scratch_floats(a, rows)))
            .attend(tasks[i].split, tasks[i].partials);
    });
    parallel_for(tiles.size(), a.threads, [&](size_t i) { finish(a, tiles[i], splits[i], partials.get() + place[i]); });
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
