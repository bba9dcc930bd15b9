// A first filter that goes by probabilities (top-p, typical, epsilon, eta), exact without a list of the whole row: the
// sums of the row say how deep a list has to be.
#pragma once

#include "sampling/decode_step/mass_sample.h"
#include "sampling/decode_step/row_sums.h"

namespace decodestep::DECODESTEP_ISA {

template <Real real>
class MassFilter {
  public:
    // The row's largest score must be known, and plainly scaled.
    MassFilter(PatchedRow<real>& row, const Step& step) : row_(row), step_(step), sums_(row), mass_(sums_.mass()) {}

    static bool knows(const Step& step) {
        const bool keeps_mass = step.what == Do::top_p || step.what == Do::typical;
        return (keeps_mass && step.amount > 0 && step.amount < 1) || step.what == Do::epsilon || step.what == Do::eta;
    }

    // Lists what the step keeps, and few tokens more. Returns the step to run on that, behind the temperature.
    Step narrow() {
        if (step_.what == Do::top_p) {
            list_head(0.8, [](float lowest) { return [=](float score) { return score > lowest; }; });
        } else if (step_.what == Do::typical) {
            list_typical();
        } else {
            if (step_.what == Do::eta) settle_eta();
            const float least = row_.least_of(row_.largest(), step_.amount * mass_);
            row_.collect(std::min(least, row_.below(row_.reached_by(step_.keep))));
        }
        row_.list.row.mass = mass_;
        return step_;
    }

  private:
    // Which is an epsilon that depends on the row.
    void settle_eta() {
        const double falling = std::sqrt(step_.amount) * natural_exp(-sums_.entropy(mass_));
        step_.what = Do::epsilon;
        step_.amount = std::min(step_.amount, falling);
    }

    // The nearest to the entropy, of both sides: as near as the threshold is from below.
    void list_typical() {
        const double log_mass = natural_log(mass_), entropy = sums_.entropy(mass_);
        const auto beyond = [=, this](float score) { return -sums_.log_share(score, log_mass) - entropy; };
        row_.list.row.entropy = entropy;
        list_head(0.25, [=](float lowest) {
            const double distance = beyond(lowest);
            return [=](float score) { return std::fabs(beyond(score)) < distance; };
        });
    }

    // Lists what reaches a threshold, such that what of it ranks before all other tokens has the step's mass; at worst
    // the whole row. A first guess leaves out `share` of what is not that mass, and further ones that share of it.
    template <class Before>
    void list_head(double share, Before&& before) {
        const double target = step_.amount * mass_ * (1 + 1e-9);  // above any rounding of the sums
        const MassSample<real> sample(row_.logits, static_cast<float>(1 / (kLn2 * row_.temperature())), row_.work);
        if (std::isfinite(sample.largest())) {
            const double apart = static_cast<double>(row_.largest()) - static_cast<double>(sample.largest());
            double tail = (mass_ - target) * natural_exp(std::min(apart / row_.temperature(), 700.0));
            for (int tries = 3; tries > 0; --tries) {
                const float threshold = sample.above(tail *= share);
                row_.collect(threshold);
                if (holds(target, before(row_.scaled(threshold)))) return;
            }
        }
        row_.collect(kNothing);
    }

    // Whether what of the list ranks before all other tokens has that mass.
    template <class Before>
    bool holds(double target, Before&& before) {
        const Candidates& list = row_.list;
        store(list.scores + list.n, broadcast(kNothing));
        const float divisor = static_cast<float>(row_.temperature());
        const double top = row_.scaled(row_.largest());
        double mass[kLanes] = {};
        size_t count = 0;
        for (size_t i = 0; i < list.n; i += kLanes)
            for (size_t lane = 0; lane < kLanes; ++lane) {
                const float score = list.scores[i + lane] / divisor;
                const bool counts = before(score);
                const double weight = natural_exp(static_cast<double>(score) - top);
                mass[lane] += counts ? weight : 0.0;
                count += counts;
            }
        return folded(mass) >= target && count >= step_.keep;
    }

    PatchedRow<real>& row_;
    Step step_;
    RowSums<real> sums_;
    const double mass_;
};

}  // namespace decodestep::DECODESTEP_ISA
