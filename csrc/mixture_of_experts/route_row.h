// Selects one token's experts: for the operator, and for kernels that route as a stage.
#pragma once

#include <algorithm>

#include "core/division.h"
#include "mixture_of_experts/expert_router.h"
#include "simd/exp.h"

namespace decodestep::DECODESTEP_BUILD {

class RouteRow {
  public:
    static size_t scratch_floats(const RouterRule& rule) { return 2 * padded(rule.experts) + rule.groups; }

    // scratch: scratch_floats(rule) floats, for the exclusive use of this object.
    RouteRow(const RouterRule& rule, float* scratch)
        : r_(rule), score_(scratch), choice_(score_ + padded(rule.experts)), group_(choice_ + padded(rule.experts)) {}

    // logits: [experts]; experts, weights: [used].
    void operator()(const float* logits, int64_t* experts, float* weights) const {
        r_.scores == RouterScores::softmax ? softmax(logits) : sigmoid(logits);
        for (size_t e = 0; e < r_.experts; ++e) choice_[e] = ordered(r_.bias ? score_[e] + r_.bias[e] : score_[e]);
        if (r_.kept_groups < r_.groups) drop_groups();
        // `experts` is a result: it is not read again, because it may be memory that another thread writes to.
        for (size_t j = 0; j < r_.used; ++j) {
            const size_t expert = take_largest();
            experts[j] = static_cast<int64_t>(expert);
            weights[j] = score_[expert];
        }
        weigh(weights);
    }

  private:
    // Below every choice, minus infinity included: marks an expert that is taken, or in a group that is dropped.
    static constexpr float kTaken = std::numeric_limits<float>::quiet_NaN();

    static size_t padded(size_t n) { return round_up(n, kLanes); }
    static float ordered(float x) { return x == x ? x : kMinusInfinity; }
    static bool is_taken(float choice) { return choice != choice; }

    // Calls put(e, v) for the logits from e on; v holds up to sixteen of them, padded with zeros.
    template <class Put>
    void each_vector(const float* logits, Put&& put) const {
        for (size_t e = 0; e < r_.experts; e += kLanes)
            put(e, e + kLanes <= r_.experts ? load(logits + e) : load_partial(logits + e, r_.experts - e));
    }

    void softmax(const float* logits) const {
        const f32x16 top = broadcast(largest(logits, r_.experts));
        f32x16 total = broadcast(0.0f);
        each_vector(logits, [&](size_t e, f32x16 v) {
            const size_t left = r_.experts - e;
            const f32x16 raised = select(left < kLanes ? (1u << left) - 1 : kAllLanes, exp(v - top));
            store(score_ + e, raised);
            total = total + raised;
        });
        const f32x16 all = broadcast(sum(total));
        for (size_t e = 0; e < r_.experts; e += kLanes) store(score_ + e, load(score_ + e) / all);
    }

    void sigmoid(const float* logits) const {
        const f32x16 one = broadcast(1.0f);
        each_vector(logits, [&](size_t e, f32x16 v) { store(score_ + e, one / (one + exp(broadcast(0.0f) - v))); });
    }

    void drop_groups() const {
        const size_t in_group = r_.experts / r_.groups;
        for (size_t g = 0; g < r_.groups; ++g) {
            float first = kMinusInfinity, second = kMinusInfinity;
            for (size_t e = g * in_group; e < (g + 1) * in_group; ++e) {
                second = std::max(second, std::min(first, choice_[e]));
                first = std::max(first, choice_[e]);
            }
            group_[g] = ordered(r_.group_score == GroupScore::maximum ? first : first + second);
        }
        for (size_t kept = 0; kept < r_.kept_groups; ++kept) group_[largest_of(group_, r_.groups)] = kTaken;
        for (size_t g = 0; g < r_.groups; ++g)
            if (!is_taken(group_[g])) std::fill_n(choice_ + g * in_group, in_group, kTaken);
    }

    // The first of the largest choices that are not taken; at least one is left.
    static size_t largest_of(const float* values, size_t count) {
        size_t best = 0;
        while (is_taken(values[best])) ++best;
        for (size_t i = best + 1; i < count; ++i)
            if (values[i] > values[best]) best = i;
        return best;
    }

    size_t take_largest() const {
        const size_t expert = largest_of(choice_, r_.experts);
        choice_[expert] = kTaken;
        return expert;
    }

    // Turns the scores of the chosen experts into weights.
    void weigh(float* weights) const {
        float total = 0.0f;
        for (size_t j = 0; j < r_.used; ++j) total += weights[j];
        for (size_t j = 0; j < r_.used; ++j)
            weights[j] = (r_.normalise ? weights[j] / (total + r_.eps) : weights[j]) * r_.scale;
    }

    const RouterRule& r_;
    float *score_, *choice_, *group_;
};

}  // namespace decodestep::DECODESTEP_BUILD
