// Rules and weights of a mixture of experts, checked: for its operators, and for a decoder.
#pragma once

#include <array>
#include <tuple>

#include "bindings/bindings.h"
#include "mixture_of_experts/expert_router.h"
#include "mixture_of_experts/mixture_of_experts.h"

namespace decodestep {

using PanelBytes = Packed<const uint8_t, 1>;
using PanelArgument = std::tuple<PanelBytes, int, size_t>;  // bytes, format, outputs

RouterRule router_rule_of(size_t experts, size_t used, int scores, size_t groups, size_t kept_groups, int group_score,
                          bool normalise, float scale, float eps, const std::optional<Vector>& bias);

// gate, or none, up and down; the number of the gate's activation; the biases of gate, up and down
using FeedForwardArgument = std::tuple<std::vector<PanelArgument>, int, std::array<std::optional<Vector>, 3>>;

// The weights of `count` blocks of so many inputs.
FeedForwardPanels feed_forward_of(const FeedForwardArgument& argument, size_t count, size_t inputs);

}  // namespace decodestep
