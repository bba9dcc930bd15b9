// Top-p on a whole row, and min-p behind it, without a sort: the winner of the race among a few more tokens than top-p
// keeps is the token if top-p keeps it, which takes the mass before it alone.
#pragma once

#include <optional>
#include <span>

#include "sampling/decode_step/gumbel_race.h"
#include "sampling/decode_step/mass_sample.h"
#include "sampling/decode_step/mass_sweep.h"
#include "sampling/decode_step/patched_row.h"

namespace decodestep::DECODESTEP_ISA {

template <Real real>
class Nucleus {
  public:
    // `filters` are the steps behind the row's patches and temperature.
    Nucleus(PatchedRow<real>& row, std::span<const Step> filters) : row_(row), list_(row.list), filters_(filters) {}

    // The token; nothing where the steps are others, or the bounds of the sums can't tell.
    std::optional<int64_t> draw(uint64_t seed, uint32_t position) {
        if (!read_steps()) return {};
        MassSample sample(row_.logits, scale_, row_.work);
        if (!weigh_row(sample)) return {};
        list_all_kept(sample);
        for (;;) {
            Race race(seed, position);
            race.enter_all(list_.ids, list_.scores, list_.n);
            const int64_t winner = race.winner();
            const float score = race.score();
            const Ahead before = ahead_of(winner, score);
            if (!before.any) return winner;
            if (natural_exp(static_cast<double>(score) - static_cast<double>(top_)) >= least_likely_) {
                if (before.mass * (1 + error_) < target_ - slack_) return winner;
                if (before.mass * (1 - error_) < target_ + slack_) return {};
            }
            // Not kept, and neither is what ranks behind it.
            list_.keep([&](size_t i) {
                return list_.scores[i] > score || (list_.scores[i] == score && list_.ids[i] < winner);
            });
        }
    }

  private:
    bool read_steps() {
        if (filters_.empty() || filters_[0].what != Do::top_p || filters_[0].keep > 1) return false;
        p_ = filters_[0].amount;
        for (const Step& behind : filters_.subspan(1)) {
            if (behind.what != Do::min_p || behind.keep > 1) return false;
            least_likely_ = std::max(least_likely_, behind.amount);
        }
        scale_ = static_cast<float>(1.0 / (kLn2 * row_.temperature()));
        return p_ > 0 && p_ < 1 && scale_ > 0 && std::isfinite(scale_);
    }

    // Finds the mass of the row, and lists what the sample promises to be enough; min-p will list less. Where the
    // sample's largest logit is too far from the row's, the row is weighed again.
    bool weigh_row(const MassSample<real>& sample) {
        constexpr float none = std::numeric_limits<float>::infinity();
        const auto likely = [&](double mass, auto&&... meanwhile) {
            return sample.above(kOfTail * (1 - p_) * mass, meanwhile...);
        };
        const auto prefetch = [&](size_t block) {
            if (block < row_.logits.blocks()) row_.logits.prefetch_block(block);
        };
        if (std::isfinite(sample.largest()) &&
            weigh_row(sample.largest(), least_likely_ > 0 ? none : likely(sample.mass(), prefetch), likely))
            return true;
        row_.find_largest();
        return std::isfinite(row_.largest()) && weigh_row(row_.largest(), none, likely);
    }

    template <class Likely>
    bool weigh_row(float reference, float threshold, Likely&& likely) {
        reference_ = reference;
        weight_ = Weight(broadcast(scale_), broadcast(-scale_ * reference_));
        MassSweep sweep = mass_sweep();
        double mass;
        if (least_likely_ > 0) {
            mass = sweep.weigh_and_find_maxima();
            row_.note_sweep();
            list_.n = 0;
        } else {
            mass = sweep.weigh_and_list(threshold, likely);
            list_overlay(sweep.threshold());
        }
        const Overlay& overlay = row_.overlay;
        double touched = mass;
        for (size_t i = 0; i < overlay.count(); ++i) {
            const double raw = weight_of(overlay.raw()[i]), now = weight_of(overlay.now()[i]);
            mass += now - raw;
            touched += now + raw;
        }
        find_largest();
        if (!row_.plainly_scaled()) return false;
        top_ = row_.scaled(row_.largest());
        const double apart = (static_cast<double>(row_.largest()) - static_cast<double>(reference_)) * scale_;
        // Relative errors: of exp2 and the sums, and of exponents and scores that are off by a few roundings.
        const double far = std::fabs(static_cast<double>(row_.largest())) + std::fabs(static_cast<double>(reference_));
        error_ = 0x1p-17 + (far * scale_ + 40) * 0x1p-21;
        target_ = p_ * mass;
        slack_ = p_ * error_ * touched;
        const bool in_range = apart > -60 && apart < 100 && error_ < 0.05;  // where not, the sums may be anything
        return in_range && slack_ < 0.05 * target_;
    }

    MassSweep<real> mass_sweep() { return {row_.logits, weight_, list_, row_.overlay.count() > 0}; }

    // Behind the others: the list then reaches down to the threshold that the sweep took.
    void list_overlay(float threshold) {
        threshold_ = threshold;
        row_.overlay.each_from(threshold_, [&](int32_t id, float now) {
            list_.ids[list_.n] = id;
            list_.scores[list_.n++] = now;
        });
    }

    void find_largest() {
        const float listed = largest(list_.scores, list_.n);
        if (listed > kNothing) {
            row_.note_largest(listed);
        } else {
            row_.find_largest();
        }
    }

    double weight_of(float x) const {
        const double exponent = (static_cast<double>(x) - static_cast<double>(reference_)) * scale_;
        return natural_exp(std::min(kLn2 * exponent, 700.0));
    }

    // Lowers the threshold until the list holds all that the steps keep, for certain.
    void list_all_kept(const MassSample<real>& sample) {
        const float deepest = least_likely_ > 0 ? row_.least_of(row_.largest(), least_likely_) : kNothing;
        for (double further = 0.5 * row_.temperature();; further *= 2) {
            if (threshold_ < std::numeric_limits<float>::infinity() &&
                (mass_of_list() * (1 - error_) >= target_ + slack_ || threshold_ <= deepest))
                return;
            float lower = lower_by(std::min(threshold_, row_.largest()), further);
            if (reference_ == sample.largest()) lower = std::min(lower, sample.above(kOfTail * (1 / p_ - 1) * target_));
            if (least_likely_ > 0) {
                threshold_ = std::max(deepest, lower);
                row_.collect(threshold_);
            } else {
                MassSweep sweep = mass_sweep();
                sweep.list(lower);
                list_overlay(sweep.threshold());
            }
        }
    }

    static float lower_by(float t, double by) {
        const auto lower = static_cast<float>(static_cast<double>(t) - by - std::fabs(static_cast<double>(t)) * 1e-3);
        return std::isnan(lower) ? kNothing : lower;
    }

    // The sum of what weight(i) gives for each sixteen of the list; float32 for as long as its error stays small.
    template <class Weights>
    double sum_over_list(Weights&& weights) const {
        double total = 0;
        for (size_t i = 0; i < list_.n;) {
            f32x16 sums = broadcast(0.0f);
            for (const size_t end = std::min(list_.n, i + kBlock); i < end; i += kLanes) sums = sums + weights(i);
            total += static_cast<double>(sum(sums));
        }
        return total;
    }

    Mask lanes_at(size_t i) const { return i + kLanes <= list_.n ? kAllLanes : (1u << (list_.n - i)) - 1; }

    // Turns the list's logits into scores. Returns the sum of the weights that rank before all that is not listed: a
    // temperature may make the threshold the equal of logits below it.
    double mass_of_list() {
        const f32x16 divisor = broadcast(static_cast<float>(row_.temperature()));
        const f32x16 lowest = broadcast(row_.scaled(threshold_));
        return sum_over_list([&](size_t i) {
            const f32x16 x = load(list_.scores + i), s = row_.is_scaled() ? x / divisor : x;
            store(list_.scores + i, s);
            return select(lanes_at(i) & ~at_least(lowest, s), weight_(x));
        });
    }

    struct Ahead {
        double mass;
        bool any;
    };

    // What ranks before the winner.
    Ahead ahead_of(int64_t winner, float score) const {
        const f32x16 bound = broadcast(score);
        const Weight weight(broadcast(kLog2E), weight_.offset);  // of scores, which are logits divided already
        Mask any = 0;
        const double mass = sum_over_list([&](size_t i) {
            const f32x16 s = load(list_.scores + i);
            const Mask not_above = at_least(bound, s);
            Mask mask = ~not_above & lanes_at(i);
            for (Mask equal = not_above & at_least(s, bound) & lanes_at(i); equal; equal &= equal - 1)
                if (list_.ids[i + static_cast<size_t>(std::countr_zero(equal))] < winner) mask |= equal & -equal;
            any |= mask;
            return select(mask, weight(s));
        });
        return {mass, any != 0};
    }

    static constexpr double kOfTail = 0.9;  // so much of what top-p may drop is not listed, at a guess

    PatchedRow<real>& row_;
    Candidates& list_;
    const std::span<const Step> filters_;
    double p_ = 0;
    double least_likely_ = 0;  // relative to the largest
    float scale_ = 0;          // from a difference of logits to an exponent of two
    float reference_ = 0;      // the logit whose weight is 1
    Weight weight_{};
    float threshold_ = std::numeric_limits<float>::infinity();  // that the list reaches down to
    float top_ = 0;                                             // the largest score
    double error_ = 0;                                          // of a sum of weights, relative
    double target_ = 0, slack_ = 0;                             // what top-p fills, and by how much it may be off
};

}  // namespace decodestep::DECODESTEP_ISA
