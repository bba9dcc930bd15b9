// Top-p on a whole row, and min-p behind it, without a sort: the winner of the race among a few more tokens than top-p
// keeps is the token if top-p keeps it, which takes the mass before it alone.
#pragma once

#include <optional>
#include <span>

#include "patched_row.h"
#include "race.h"

namespace decodestep::DECODESTEP_ISA {

template <Real real>
class Nucleus {
  public:
    // `filters` are the steps behind the row's patches and temperature.
    Nucleus(PatchedRow<real>& row, std::span<const Step> filters) : row_(row), list_(row.list), filters_(filters) {}

    // The token; nothing where the steps are others, or the bounds of the sums can't tell.
    std::optional<int64_t> draw(uint64_t seed, uint32_t position) {
        if (filters_.empty() || filters_[0].what != Do::top_p) return {};
        const Step& step = filters_[0];
        if (step.keep > 1 || !(step.amount > 0 && step.amount < 1)) return {};
        double least_likely = 0;  // relative to the largest
        for (const Step& behind : filters_.subspan(1)) {
            if (behind.what != Do::min_p || behind.keep > 1) return {};
            least_likely = std::max(least_likely, behind.amount);
        }
        const auto inverse = static_cast<float>(1.0 / row_.temperature());
        if (!std::isfinite(inverse)) return {};
        row_.sweep_mass(inverse);
        row_.note_largest();
        if (!row_.plainly_scaled()) return {};
        row_.settle_largest();
        if (!row_.plainly_scaled()) return {};
        // Relative errors: of exp and the sums of 32, and of scores that are off by a few roundings.
        const double error = 0x1p-18 + (std::fabs(static_cast<double>(row_.largest()) * inverse) + 20) * 0x1p-21;
        double mass = 0, slack = 0;
        if (!total_mass(inverse, error, mass, slack)) return {};
        const double target = step.amount * mass, target_slack = step.amount * slack;
        const float deepest = least_likely > 0 ? row_.least_of(row_.largest(), least_likely) : kNothing;
        float threshold = likely_threshold(target, mass, inverse);
        for (double further = 0.5 * row_.temperature();; further *= 2) {
            threshold = std::max(row_.below(threshold), deepest);
            row_.collect(threshold, false);
            if (weigh_list() * (1 - error) >= target + target_slack || threshold == deepest) break;
            threshold = lower_by(threshold, further);
        }
        for (;;) {
            Race race(seed, position);
            race.enter_all(list_.ids, list_.scores, list_.n);
            winner_ = race.winner();
            const float score = race.score();
            const Ahead before = ahead_of_winner(score);
            if (!before.any) return winner_;
            const double weight =
                natural_exp(static_cast<double>(score) - static_cast<double>(row_.scaled(row_.largest())));
            if (weight >= least_likely) {
                if (before.mass * (1 + error) < target - target_slack) return winner_;
                if (before.mass * (1 - error) < target + target_slack) return {};
            }
            // Not kept, and neither is what ranks behind it.
            list_.keep([&](size_t i) {
                return list_.scores[i] > score || (list_.scores[i] == score && list_.ids[i] < winner_);
            });
        }
    }

  private:
    // The sum of exp((x - largest) / temperature) over the patched row, and by how much it may be off.
    bool total_mass(float inverse, double error, double& mass, double& slack) const {
        const auto weight = [&](float x) {
            return natural_exp(std::min(
                (static_cast<double>(x) - static_cast<double>(row_.largest())) * static_cast<double>(inverse), 40.0));
        };
        float top = kNothing;
        double factor = 0;
        for (size_t block = 0; block < row_.logits.blocks(); ++block) {
            if (row_.work.block_top[block] != top) {
                top = row_.work.block_top[block];
                factor = weight(top);
            }
            mass += row_.work.block_sum[block] * factor;
        }
        double touched = mass;
        for (size_t i = 0; i < row_.overlay.count(); ++i) {
            const double raw = weight(row_.overlay.raw()[i]), now = weight(row_.overlay.now()[i]);
            mass += now - raw;
            touched += now + raw;
        }
        slack = error * touched;
        return slack < 0.05 * mass;
    }

    // About the logit that a mass of `target` reaches from above, guessed from the head of the row and a sample of the
    // rest.
    float likely_threshold(double target, double mass, float inverse) {
        const float head = row_.reached_by(32);
        row_.collect(head);
        double above = 0;
        for (size_t i = 0; i < list_.n; ++i)
            above +=
                natural_exp((static_cast<double>(list_.scores[i]) - static_cast<double>(row_.largest())) * inverse);
        if (above >= target * 1.001 || head == kNothing) return head;
        constexpr size_t kSampled = 16;
        const size_t stride = std::max<size_t>(1, row_.logits.blocks() / kSampled);
        float* const sample = row_.work.selection.get();
        size_t n = 0;
        for (size_t block = stride / 2; block < row_.logits.blocks() && n < kSampled * kBlock; block += stride)
            row_.logits.each_vector(block, [&](f32x16 x, size_t) {
                store(sample + n, x);
                n += kLanes;
            });
        float* const weights = row_.work.scores.get();  // free until the next `collect`
        const f32x16 scale = broadcast(inverse), offset = broadcast(-row_.largest() * inverse);
        for (size_t i = 0; i < n; i += kLanes) {
            const f32x16 x = load(sample + i), weight = decaying_exp(min(fma(x, scale, offset), broadcast(0.0f)));
            store(weights + i, select(~at_least(x, broadcast(head)) & kAllLanes, weight));
        }
        const auto mass_from = [&](float t) {
            f32x16 sums = broadcast(0.0f);
            for (size_t i = 0; i < n; i += kLanes)
                sums = sums + select(at_least(load(sample + i), broadcast(t)), load(weights + i));
            return sum(sums);
        };
        const double share = std::min(1.0, (target - above) / std::max(mass - above, 1e-300) + 0.03);
        const double wanted = share * mass_from(kNothing);
        uint32_t low = ordered(kNothing), high = ordered(head);
        for (int i = 0; i < 16 && high - low > 1; ++i) {
            const uint32_t middle = low + (high - low) / 2;
            (mass_from(from_ordered(middle)) >= wanted ? low : high) = middle;
        }
        return from_ordered(low);
    }

    static float lower_by(float t, double by) {
        const auto lower = static_cast<float>(static_cast<double>(t) - by - std::fabs(static_cast<double>(t)) * 1e-3);
        return std::isfinite(lower) ? lower : kNothing;
    }

    // The sum of what weight(i) gives for each sixteen of the list; float32 for as long as its error stays small.
    template <class Weight>
    double sum_over_list(Weight&& weight) const {
        double total = 0;
        for (size_t i = 0; i < list_.n;) {
            f32x16 sums = broadcast(0.0f);
            for (const size_t end = std::min(list_.n, i + kBlock); i < end; i += kLanes) sums = sums + weight(i);
            total += static_cast<double>(sum(sums));
        }
        return total;
    }

    Mask lanes_at(size_t i) const { return i + kLanes <= list_.n ? kAllLanes : (1u << (list_.n - i)) - 1; }

    // Turns the list's logits into scores, and returns the sum of their weights.
    double weigh_list() {
        const f32x16 divisor = broadcast(static_cast<float>(row_.temperature())),
                     top = broadcast(row_.scaled(row_.largest()));
        return sum_over_list([&](size_t i) {
            f32x16 s = load(list_.scores + i);
            if (row_.is_scaled()) s = s / divisor;
            store(list_.scores + i, s);
            return select(lanes_at(i), decaying_exp(s - top));
        });
    }

    struct Ahead {
        double mass;
        bool any;
    };

    // What ranks before the winner.
    Ahead ahead_of_winner(float score) const {
        const f32x16 top = broadcast(row_.scaled(row_.largest())), bound = broadcast(score);
        Mask any = 0;
        const double mass = sum_over_list([&](size_t i) {
            const f32x16 s = load(list_.scores + i);
            const Mask not_above = at_least(bound, s);
            Mask mask = ~not_above & lanes_at(i);
            for (Mask equal = not_above & at_least(s, bound) & lanes_at(i); equal; equal &= equal - 1)
                if (list_.ids[i + static_cast<size_t>(std::countr_zero(equal))] < winner_) mask |= equal & -equal;
            any |= mask;
            return select(mask, decaying_exp(s - top));
        });
        return {mass, any != 0};
    }

    PatchedRow<real>& row_;
    Candidates& list_;
    const std::span<const Step> filters_;
    int64_t winner_ = -1;
};

}  // namespace decodestep::DECODESTEP_ISA
