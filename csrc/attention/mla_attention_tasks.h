// The work of one `mla_attention` call as two lists of tasks, for the operator and for kernels that run them as their
// own stages: first every `attend`, then every `merge`. The tasks of a list may run in any order on any threads; the
// result has the same bits for every thread count.
#pragma once

#include <memory>
#include <vector>

#include "attention/partial_softmax.h"
#include "attention/tile_splits.h"

namespace decodestep::DECODESTEP_BUILD {

class MlaAttentionTasks {
  public:
    // Divides the call into tiles of rows: of one sequence, or of adjacent ones that begin with the same blocks. If
    // there are at least four tiles per thread, one thread, or no tile of several splits, a task is a whole tile and
    // nothing needs merging; otherwise a task is a few splits of a tile, so that even one token keeps every thread
    // busy. call: must outlive the tasks.
    explicit MlaAttentionTasks(const MlaAttention& call);

    size_t attend_count() const { return tasks_.empty() ? tiles_.size() : tasks_.size(); }
    void attend(size_t task) const;

    size_t merge_count() const { return merges_.size(); }  // one for each row of a result
    void merge(size_t task) const;

  private:
    // Rows that share keys at least in a part of the splits, and their sections.
    struct Tile {
        AttentionRows rows;
        std::vector<TileSection> sections;
    };
    struct Task {
        const Tile* tile;
        TileSection section;
        float* partials;
    };
    struct Merge {
        size_t tile, row;
    };

    void list_tiles();
    void list_splits();
    size_t splits_of(const AttentionRows& rows) const;

    const MlaAttention& call_;
    const size_t width_;  // of a result
    std::vector<Tile> tiles_;
    // Only if splits are tasks:
    std::vector<Task> tasks_;
    std::vector<Merge> merges_;
    std::vector<std::vector<PartialSoftmaxes>> partials_;  // of the sections of each tile: [splits, rows]
    std::unique_ptr<float[]> records_;
};

}  // namespace decodestep::DECODESTEP_BUILD
