// A first filter that depends on probabilities (top-p, typical, epsilon, eta), exact without listing the whole row:
// sums over the row tell how far down a list must go.
#pragma once

#include "sampling/decode_step/mass_estimate.h"
#include "sampling/decode_step/row_sums.h"

namespace decodestep::DECODESTEP_BUILD {

// Whether ProbabilityFilter has a list for the step.
inline bool needs_sums(const Step& step) {
    const bool keeps_mass = step.kind == StepKind::top_p || step.kind == StepKind::typical;
    return (keeps_mass && step.amount > 0 && step.amount < 1) || step.kind == StepKind::epsilon ||
           step.kind == StepKind::eta;
}

template <LogitType type>
class ProbabilityFilter {
  public:
    ProbabilityFilter(const RowSums<type>& sums, const Step& step)
        : sums_(sums), swept_(sums.swept()), row_(swept_.row()), step_(step), mass_(sums_.mass()) {}

    // Lists, unscaled, what the step keeps and few tokens more, and hands the sums over the row to the list. Returns
    // the filter to run on the scaled list, which has the effect of the step.
    Step narrow() {
        if (step_.kind == StepKind::top_p) {
            list_top([](float lowest) { return [=](float score) { return score > lowest; }; }, 0.8);
        } else if (step_.kind == StepKind::typical) {
            list_typical();
        } else {
            if (step_.kind == StepKind::eta) make_epsilon_of_eta();
            const float least = row_.lower_bound_of_probability(sums_.max_logit(), step_.amount * mass_);
            swept_.list_from(std::min(least, row_.below(swept_.reached_by(step_.min_keep))));
        }
        row_.list.whole_row.mass = mass_;
        return step_;
    }

  private:
    // Eta is an epsilon that depends on the row's entropy.
    void make_epsilon_of_eta() {
        const double falling = std::sqrt(step_.amount) * natural_exp(-sums_.entropy(mass_));
        step_.kind = StepKind::epsilon;
        step_.amount = std::min(step_.amount, falling);
    }

    // Tokens rank by the distance of their surprise from the entropy, on either side of it. A list from a threshold on
    // holds all on the more likely side, and on the other those that are nearer than the threshold.
    void list_typical() {
        const double log_mass = natural_log(mass_), entropy = sums_.entropy(mass_);
        const auto above_entropy = [=, this](float score) { return -sums_.log_probability(score, log_mass) - entropy; };
        row_.list.whole_row.entropy = entropy;
        list_top(
            [=](float lowest) {
                const double distance = above_entropy(lowest);
                return [=](float score) { return std::fabs(above_entropy(score)) < distance; };
            },
            0.25);
    }

    // Lists all tokens from a threshold on, so low that the tokens which outrank every unlisted one hold the step's
    // mass; in the worst case the whole row. outranks(score of the threshold) gives the test for such tokens. The first
    // guess leaves `share` of the tail unlisted, which is the mass beyond the step's; each retry, `share` of the last.
    template <class Outranks>
    void list_top(Outranks&& outranks, double share) {
        const double target = step_.amount * mass_ * (1 + 1e-9);  // above any rounding of the sums
        const MassEstimate<type> sample(row_.logits, static_cast<float>(1 / (kLn2 * row_.temperature())));
        if (std::isfinite(sample.max_logit())) {
            const double apart = static_cast<double>(sums_.max_logit()) - static_cast<double>(sample.max_logit());
            double tail = (mass_ - target) * natural_exp(std::min(apart / row_.temperature(), 700.0));
            for (int tries = 3; tries > 0; --tries) {
                const float threshold = sample.logit_above_tail(tail *= share);
                swept_.list_from(threshold);
                if (list_holds(target, outranks(row_.score_of(threshold)))) return;
            }
        }
        swept_.list_from(kMinusInfinity);
    }

    // Whether the listed tokens that outrank all others have that mass, and are as many as the step keeps at least.
    template <class Outranks>
    bool list_holds(double target, Outranks&& outranks) const {
        const Candidates& list = row_.list;
        store(list.scores + list.n, broadcast(kMinusInfinity));
        const float divisor = static_cast<float>(row_.temperature());
        const double max_score = row_.score_of(sums_.max_logit());
        double mass[kLanes] = {};
        size_t count = 0;
        for (size_t i = 0; i < list.n; i += kLanes)
            for (size_t lane = 0; lane < kLanes; ++lane) {
                const float score = list.scores[i + lane] / divisor;
                const bool counts = outranks(score);
                const double weight = natural_exp(static_cast<double>(score) - max_score);
                mass[lane] += counts ? weight : 0.0;
                count += counts;
            }
        return folded(mass) >= target && count >= step_.min_keep;
    }

    const RowSums<type> sums_;
    SweptRow<type>& swept_;
    PatchedRow<type>& row_;
    Step step_;
    const double mass_;
};

}  // namespace decodestep::DECODESTEP_BUILD
