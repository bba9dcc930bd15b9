// The work of one `lightning_indexer` call as two lists of tasks, for the operator and for kernels that run them as
// their own stages: first every `score`, then every `select`. The tasks of a list may run in any order on any threads;
// the result has the same bits for every thread count.
#pragma once

#include <memory>
#include <vector>

#include "attention/lightning_indexer.h"

namespace decodestep::DECODESTEP_BUILD {

class LightningIndexerTasks {
  public:
    // Divides the tokens into tiles that read the same keys. If there are at least four tiles per thread, or one
    // thread, a task scores all keys of a tile and selects from them; otherwise a task scores a part of the keys, so
    // that even one token keeps every thread busy, and `select` tasks follow. call: must outlive the tasks.
    explicit LightningIndexerTasks(const LightningIndexer& call);

    size_t score_count() const { return parts_.empty() ? tiles_.size() : parts_.size(); }
    void score(size_t task) const;

    size_t select_count() const { return selections_.size(); }
    void select(size_t task) const;

  private:
    // Adjacent tokens of one sequence, and the most keys that one of them sees.
    struct Tile {
        size_t token, tokens, longest;
    };
    struct Part {
        size_t tile, first, end;  // keys
    };
    struct Selection {
        size_t tile, token;
    };

    void list_tiles();
    void list_parts();
    void score(const Tile& tile, size_t first, size_t end, float* scores, size_t stride, float* memory) const;
    void select(size_t token, const float* scores) const;

    const LightningIndexer& call_;
    std::vector<Tile> tiles_;
    // Only if parts of tiles are tasks:
    std::vector<Part> parts_;
    std::vector<Selection> selections_;
    std::vector<size_t> first_score_;  // of each tile
    std::unique_ptr<float[]> scores_;
};

}  // namespace decodestep::DECODESTEP_BUILD
