// Selects the experts of every token, and their weights.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/isa.h"

namespace decodestep {

// The numbers are those of SCORES and GROUP_SCORES in ops/expert_router/arguments.py.
enum class RouterScores : int { softmax = 0, sigmoid = 1 };
enum class GroupScore : int { maximum = 0, top_two = 1 };

// With score = softmax or sigmoid of a token's logits and choice = score + bias: of the kept_groups groups of
// neighbours with the largest group score, the `used` experts with the largest choice, the largest first; among equals
// the lower number goes first. weight = score of the chosen, divided by their sum + eps if `normalise`, times
// `scale`. groups divides experts, kept_groups is in [1, groups], used in [1, kept_groups * experts / groups].
struct RouterRule {
    size_t experts, used;
    RouterScores scores;
    size_t groups, kept_groups;
    GroupScore group_score;  // top_two: the sum of the two largest, of groups of two or more
    bool normalise;
    float scale, eps;
    const float* bias;  // [experts], or null
};

// NaN: a choice or a group score that is NaN counts as minus infinity; a weight keeps it. Determinism: a token's bits
// depend on its own logits alone.
struct ExpertRouter {
    RouterRule rule;
    const float* logits;  // [tokens, experts]
    ptrdiff_t logits_stride;
    size_t tokens;
    int64_t* experts;  // [tokens, used]
    float* weights;    // [tokens, used]
    int threads;
};

DECODESTEP_KERNEL(vectors, expert_router, ExpertRouter)

}  // namespace decodestep
