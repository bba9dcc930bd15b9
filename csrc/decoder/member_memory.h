// The stages of a step, and what each member of the team makes for itself in them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "decoder/decoder_forward.h"
#include "decoder/stage_kind.h"
#include "linear/forms.h"
#include "mixture_of_experts/expert_rows.h"

namespace decodestep::DECODESTEP_BUILD {

struct Stage {
    StageKind kind;
    const DecoderLayer* layer;  // null after the last layer
    size_t layer_number;
    Forms forms;   // forms of the rows that the stage makes or reads
    size_t sweep;  // of a product: the index of its PanelSweep
};

// Up to so many tokens, every member makes all activation rows for itself, which takes less time than another stage.
constexpr size_t kMaxReplicatedTokens = 4;

// Up to so many floats, every member merges the attention partials for itself.
constexpr size_t kMaxReplicatedMerge = size_t{1} << 15;

// Of teams of more than eight, less in proportion, but one token: all members read the same lines from the caches of
// those that have written them, and a stage more costs a team of any size about as much. Computed, not measured.
inline size_t replicable(size_t most, int threads) {
    return std::max<size_t>(most * 8 / static_cast<size_t>(std::max(threads, 8)), 1);
}

// The experts of all tokens in one layer: shared by all members, or each member's own.
struct Routing {
    size_t layer = ~size_t{0};  // the layer that `rows` belongs to
    std::vector<int64_t> experts;
    std::vector<float> weights;
    ExpertRows rows;
};

// What only one member of the team uses.
struct alignas(128) MemberMemory {
    float* rows = nullptr;           // the rows that a product reads, if the members do not share them
    const Stage* rows_of = nullptr;  // the stage for which they were made
    Routing routing;
};

}  // namespace decodestep::DECODESTEP_BUILD
