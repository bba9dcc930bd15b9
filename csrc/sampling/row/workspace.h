// Scratch memory of the samplers, allocated for a vocabulary size and reused by later calls. Not built per instruction
// set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace decodestep {

// A pass over a row reads blocks of 32 vectors of 16 lanes. The 32 logits of one lane within a block are a group.
constexpr size_t kLanesOfBlock = 16;
constexpr size_t kLogitsBlock = 32 * kLanesOfBlock;

// An item to sort by key, lowest first; among equal keys the lower index goes first.
struct Ranked {
    double key;
    uint32_t index;
};

// Arrays for a row of `vocab` tokens, each with room for one vector more. Not initialised unless said otherwise. What
// is in one belongs to an object, which says so; where none is named, to the function that is using it, and ends with
// it.
struct Workspace {
    explicit Workspace(size_t vocab);

    size_t vocab;
    std::unique_ptr<float[]> group_max;  // GroupMaxima
    // Of the list of candidates:
    std::unique_ptr<int32_t[]> ids;
    std::unique_ptr<float[]> scores;
    std::unique_ptr<double[]> weights, logs, terms;  // CandidateList's Weights, LogProbabilities, Entropy
    std::unique_ptr<uint8_t[]> kept;
    std::unique_ptr<Ranked[]> ranking;
    std::unique_ptr<uint64_t[]> keys, spare_keys;
    std::unique_ptr<float[]> selection;
    // Overlay:
    std::unique_ptr<uint64_t[]> marks;  // one bit for each token of whole blocks: it is patched. Zero between rows
    std::unique_ptr<int32_t[]> patched_ids;
    std::unique_ptr<float[]> patched_raw, patched_now;
    std::unique_ptr<uint32_t[]> places;  // by token: where it is among the patched ids, if it is marked

    // Of masked_row; made when it is first wanted.
    float* masked();

  private:
    std::unique_ptr<float[]> masked_;
};

// Workspaces of a call, one for each thread. They are kept for later calls at the end.
class Workspaces {
  public:
    Workspaces(size_t count, size_t vocab);
    ~Workspaces();
    Workspaces(const Workspaces&) = delete;
    Workspaces& operator=(const Workspaces&) = delete;
    Workspace& operator[](size_t i) { return *taken_[i]; }

  private:
    std::vector<std::unique_ptr<Workspace>> taken_;
};

}  // namespace decodestep
