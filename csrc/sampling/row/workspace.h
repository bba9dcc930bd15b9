// Where the sampler works: allocated for a vocabulary once, used again by later calls. Not built per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace decodestep {

// One pass reads blocks of 32 vectors of 16 lanes; the 32 values of a lane within a block are a group.
constexpr size_t kLanesOfBlock = 16;
constexpr size_t kBlock = 32 * kLanesOfBlock;

// Something of a token that is sorted by: the lower `place`, its place in a list of ascending ids, goes first among
// equals.
struct Ranked {
    double key;
    uint32_t place;
};

// Arrays for a row of `vocab` tokens. What is not said to be zero is not initialised.
struct Workspace {
    explicit Workspace(size_t vocab);

    size_t vocab;
    std::unique_ptr<float[]> group_max;  // of each group of each block
    std::unique_ptr<int32_t[]> ids;      // candidates, with room for one vector more
    std::unique_ptr<float[]> scores;
    std::unique_ptr<double[]> weights, logs, terms;
    std::unique_ptr<uint8_t[]> kept;
    std::unique_ptr<Ranked[]> ranking;
    std::unique_ptr<uint64_t[]> keys, spare_keys;  // of a list that is sorted
    std::unique_ptr<float[]> selection;
    std::unique_ptr<uint64_t[]> marks;  // one bit a token, of whole blocks; zero between rows
    std::unique_ptr<int32_t[]> patched_ids;
    std::unique_ptr<float[]> patched_raw, patched_now;
    std::unique_ptr<uint32_t[]> slots;  // a hash table of patched ids
    size_t slot_bits;
};

// Workspaces of a call, one for each thread; they go back to the shelf at the end.
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
