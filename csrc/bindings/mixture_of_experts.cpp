#include "mixture_of_experts/mixture_of_experts.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/mixture_of_experts.h"

namespace decodestep {

RouterRule router_rule_of(size_t experts, size_t used, int scores, size_t groups, size_t kept_groups, int group_score,
                          bool normalise, float scale, float eps, const std::optional<Vector>& bias) {
    require(experts > 0 && experts < kMaxAxis, "there must be an expert");
    require(scores == 0 || scores == 1, "the scores are unknown");
    require(group_score == 0 || group_score == 1, "the group score is unknown");
    require(groups > 0 && experts % groups == 0, "groups must divide the experts");
    require(kept_groups > 0 && kept_groups <= groups, "kept_groups is out of range");
    require(used > 0 && used <= kept_groups * (experts / groups), "used is out of range");
    require(eps >= 0, "eps is out of range");
    require(!bias || bias->shape(0) == experts, "bias has the wrong shape");
    require_aligned(bias);
    return {.experts = experts,
            .used = used,
            .scores = static_cast<RouterScores>(scores),
            .groups = groups,
            .kept_groups = kept_groups,
            .group_score = static_cast<GroupScore>(group_score),
            .normalise = normalise,
            .scale = scale,
            .eps = eps,
            .bias = bias ? bias->data() : nullptr};
}

FeedForwardPanels feed_forward_of(const FeedForwardArgument& argument, size_t count, size_t inputs) {
    const auto& [weights, activation, biases] = argument;
    const bool has_gate = weights.size() == 3;
    require(weights.size() == size_t{2} + has_gate, "a feed-forward block has two or three weights");
    require(count > 0 && count < kMaxAxis && inputs > 0 && inputs < kMaxAxis, "a size is out of range");
    require(activation >= 0 && activation <= static_cast<int>(Gate::clamped_silu), "activation is out of range");
    const PanelArgument &up = weights[has_gate], &down = weights[has_gate + 1];
    const size_t width = std::get<2>(up) / count;
    require(std::get<2>(up) == count * width && width > 0 && width < kMaxAxis && width % 32 == 0 && inputs % 32 == 0,
            "the sizes of feed-forward blocks must be multiples of 32");
    const auto panels = [](const PanelArgument& argument, size_t in, size_t out) {
        const auto& [bytes, format, outputs] = argument;
        require(outputs == out, "a weight has the wrong number of outputs");
        return panel_weight_of(bytes, format, in, outputs);
    };
    const auto vector = [](const std::optional<Vector>& bias, size_t length) -> const float* {
        require(!bias || bias->shape(0) == length, "a bias has the wrong length");
        require_aligned(bias);
        return bias ? bias->data() : nullptr;
    };
    return {has_gate ? panels(weights[0], inputs, count * width) : LinearPanelWeight{},
            panels(up, inputs, count * width),
            panels(down, width, count * inputs),
            count,
            static_cast<Gate>(activation),
            vector(biases[0], has_gate ? count * width : 0),
            vector(biases[1], count * width),
            vector(biases[2], count * inputs)};
}

namespace {

FeedForwardArgument argument_of(nb::handle given, const char* what) {
    FeedForwardArgument argument;
    if (!nb::try_cast(frozen(given), argument, false)) throw nb::type_error(what);
    return argument;
}

void call_expert_router(Array<const float, 2> logits, const std::optional<Vector>& bias, Packed<int64_t, 2> experts,
                        Packed<float, 2> weights, size_t used, int scores, size_t groups, size_t kept_groups,
                        int group_score, bool normalise, float scale, float eps, int threads) {
    const size_t tokens = logits.shape(0);
    require_aligned(logits, experts, weights);
    const RouterRule rule =
        router_rule_of(logits.shape(1), used, scores, groups, kept_groups, group_score, normalise, scale, eps, bias);
    require(experts.shape(0) == tokens && experts.shape(1) == used && weights.shape(0) == tokens &&
                weights.shape(1) == used,
            "experts or weights has the wrong shape");
    const ExpertRouter args{.rule = rule,
                            .logits = logits.data(),
                            .logits_stride = row_stride(logits),
                            .tokens = tokens,
                            .experts = experts.data(),
                            .weights = weights.data(),
                            .threads = thread_count(threads)};
    const ReleasedGil released;
    expert_router(args);
}

void call_mixture_of_experts(Array<const float, 2> x, Packed<const int64_t, 2> experts, Packed<const float, 2> weights,
                             nb::handle routed_block, size_t count, nb::handle shared_block, Packed<float, 2> y,
                             int threads) {
    const auto routed = argument_of(routed_block, "_native.mixture_of_experts: routed has the wrong type");
    const auto shared = argument_of(shared_block, "_native.mixture_of_experts: shared has the wrong type");
    const size_t tokens = x.shape(0), used = experts.shape(1);
    require_aligned(x, experts, weights, y);
    require(experts.shape(0) == tokens && weights.shape(0) == tokens && weights.shape(1) == used,
            "experts or weights has the wrong shape");
    require(y.shape(0) == tokens && y.shape(1) == x.shape(1), "y has the wrong shape");
    const FeedForwardPanels of_experts = feed_forward_of(routed, count, x.shape(1));
    const FeedForwardPanels of_all =
        std::get<0>(shared).empty() ? FeedForwardPanels{} : feed_forward_of(shared, 1, x.shape(1));
    const std::vector<int64_t> chosen(experts.data(), experts.data() + experts.size());
    require(all_within(chosen, count), "an expert is out of range");
    if (tokens == 0) return;
    const MixtureOfExperts args{.x = x.data(),
                                .x_stride = row_stride(x),
                                .tokens = tokens,
                                .used = used,
                                .experts = chosen.data(),
                                .weights = weights.data(),
                                .routed = of_experts,
                                .shared = of_all,
                                .y = y.data(),
                                .threads = thread_count(threads)};
    const ReleasedGil released;
    mixture_of_experts(args);
}

}  // namespace

void bind_mixture_of_experts(nb::module_& m) {
    m.def("expert_router", &call_expert_router, nb::arg("logits").noconvert(), nb::arg("bias").none().noconvert(),
          nb::arg("experts").noconvert(), nb::arg("weights").noconvert(), nb::arg("used"), nb::arg("scores"),
          nb::arg("groups"), nb::arg("kept_groups"), nb::arg("group_score"), nb::arg("normalise"), nb::arg("scale"),
          nb::arg("eps"), nb::arg("threads"));
    m.def("mixture_of_experts", &call_mixture_of_experts, nb::arg("x").noconvert(), nb::arg("experts").noconvert(),
          nb::arg("weights").noconvert(), nb::arg("routed"), nb::arg("count"), nb::arg("shared"),
          nb::arg("y").noconvert(), nb::arg("threads"));
}

}  // namespace decodestep
