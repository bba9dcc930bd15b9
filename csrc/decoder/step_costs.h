// The time of a decoder's step, attributed to operators by stage. Not built per instruction set.
#pragma once

#include <chrono>
#include <cstddef>

namespace decodestep {

enum class StepPart {
    linear,
    grouped_attention,
    mla_prolog,
    mla_attention,
    lightning_indexer,
    convolution,
    delta_rule,
    state_update,
    feed_forward,
    expert_router,
    experts
};
constexpr const char* kStepParts[] = {
    "linear",           "grouped_attention",      "mla_prolog",   "mla_attention", "lightning_indexer", "causal_conv1d",
    "gated_delta_rule", "selective_state_update", "feed_forward", "expert_router", "mixture_of_experts"};

// Per part: seconds, and the number of stages.
using StepCost = double[2];

// Read at the start of every stage.
class StepClock {
  public:
    // costs: one for each part, to which the times are added; null: no clock is read.
    explicit StepClock(StepCost* costs) : costs_(costs) {}

    void begin(StepPart part) {
        if (!costs_) return;
        end();
        part_ = costs_[static_cast<size_t>(part)];
        part_[1] += 1;
    }
    void end() {
        if (!costs_) return;
        const auto now = std::chrono::steady_clock::now();
        if (part_) part_[0] += std::chrono::duration<double>(now - since_).count();
        since_ = now;
    }

  private:
    StepCost* costs_;
    double* part_ = nullptr;
    std::chrono::steady_clock::time_point since_;
};

}  // namespace decodestep
