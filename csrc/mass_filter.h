// A first filter that goes by probabilities (top-p, epsilon, eta), exact without a list of the whole row: the sums of
// the row say how deep a list has to be.
#pragma once

#include "mass_sample.h"
#include "row_sums.h"

namespace decodestep::DECODESTEP_ISA {

template <Real real>
class MassFilter {
  public:
    // The row's largest score must be known, and plainly scaled.
    MassFilter(PatchedRow<real>& row, const Step& step) : row_(row), step_(step), sums_(row), mass_(sums_.mass()) {}

    static bool knows(const Step& step) {
        return (step.what == Do::top_p && step.amount > 0 && step.amount < 1) || step.what == Do::epsilon ||
               step.what == Do::eta;
    }

    // Lists what the step keeps, and few tokens more. Returns the step to run on that, behind the temperature.
    Step narrow() {
        if (step_.what == Do::top_p) {
            list_top();
        } else {
            if (step_.what == Do::eta) settle_eta();
            const float least = row_.least_of(row_.largest(), step_.amount * mass_);
            row_.collect(std::min(least, row_.below(row_.reached_by(step_.keep))));
        }
        row_.list.row_mass = mass_;
        return step_;
    }

  private:
    // Which is an epsilon that depends on the row.
    void settle_eta() {
        const double falling = std::sqrt(step_.amount) * natural_exp(-sums_.entropy(mass_));
        step_.what = Do::epsilon;
        step_.amount = std::min(step_.amount, falling);
    }

    void list_top() {
        const double target = step_.amount * mass_ * (1 + 1e-9);  // above any rounding of the sums
        const MassSample<real> sample(row_.logits, static_cast<float>(1 / (kLn2 * row_.temperature())), row_.work);
        if (std::isfinite(sample.largest())) {
            const double apart = static_cast<double>(row_.largest()) - static_cast<double>(sample.largest());
            double tail = (mass_ - target) * natural_exp(std::min(apart / row_.temperature(), 700.0));
            for (int tries = 3; tries > 0; --tries)
                if (holds(sample.above(tail *= 0.8), target)) return;
        }
        row_.collect(kNothing);
    }

    // Lists what reaches the threshold. Whether what of it ranks before all the others has that mass.
    bool holds(float threshold, double target) {
        row_.collect(threshold);
        const Candidates& list = row_.list;
        store(list.scores + list.n, broadcast(kNothing));
        const float lowest = row_.scaled(threshold), divisor = static_cast<float>(row_.temperature());
        const double top = row_.scaled(row_.largest());
        double mass[kLanes] = {};
        size_t count = 0;
        for (size_t i = 0; i < list.n; i += kLanes)
            for (size_t lane = 0; lane < kLanes; ++lane) {
                const float score = list.scores[i + lane] / divisor;
                const bool counts = score > lowest;
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
