// Top-p on a whole row, and min-p after it, drawn without a sort.
//
// Ranking. Tokens rank by score, highest first, and by id among equals, lowest first. A token's weight is
// exp(score - highest score); above(w) is the sum of the weights of the tokens that rank before w. Top-p keeps w if
// above(w) < target, which is p times the sum of all weights; min-p keeps w if its weight is at least least_weight_.
// What both keep is called the nucleus. The sample is its member with the greatest score + Gumbel noise: the winner.
//
// Claim. draw() returns the winner of the nucleus, or nothing.
//
// Proof. Both conditions fail for all tokens after one that fails them, so the nucleus is a prefix of the ranking. It
// is not empty: above(first) = 0 < target, and the first token has weight 1. Two things are true of the list whenever
// the loop in draw() starts another turn:
//   (A) it contains the nucleus;
//   (B) if it contains a member w of the nucleus, it contains all tokens that rank before w.
// A turn races the tokens of the list; let w be the winner of the list.
// - inside: w is in the nucleus. It beats every token of the list, so by (A) every token of the nucleus. Return it.
// - outside: w is not in the nucleus, and neither is any token that ranks after w. Drop them all from the list. That
//   keeps (A); it keeps (B) too, because what ranks before a member of the nucleus ranks before w.
// - undecided: the errors below leave both possible. Return nothing; the caller then sorts.
// Every turn but the last shortens the list. The first token of the row always stays, and as soon as the winner has no
// token of the list before it, it is that token, which is inside. So the loop ends.
//
// The list at the start. list_superset() lists tokens down to a threshold_, lowered until one of these holds:
// - the listed tokens whose scores exceed the score of threshold_ weigh at least the target. Every other token ranks
//   after all of these (one with the score of threshold_ or less ranks after any with more), so top-p drops it: (A).
//   The members of the nucleus are among these tokens; whatever ranks before one has at least its score, hence a logit
//   above threshold_, and is listed: (B);
// - threshold_ is at most lower_bound_of_probability(): every token below it fails min-p, and so does every token with
//   the score of one below it. Hence (A), and (B) in the same way. Without min-p that bound is -inf: all is listed.
// Where the list holds more, as where WeighingPass has raised its threshold on the way, neither (A) nor (B) suffers.
//
// The test. min-p is tested as in the reference. above(w) is summed over the list; by (B) nothing is missing if w is in
// the nucleus, and for any other w what is missing could only make above(w) greater: the sum then holds the target
// already, or min-p has failed. Sums are in float32, so that there are three answers:
//   above * (1 + error_) < target_ - slack_    inside for certain
//   above * (1 - error_) >= target_ + slack_   outside for certain
//   otherwise                                  undecided
// error_ bounds the relative error of a sum of weights, against the sums of the reference in float64:
// - 2^-17 for exp2 (2^-18), and for up to 32 additions of float32 in a lane (2^-19) before float64 takes over;
// - (far * scale + 40) * 2^-21 for the exponents, in units of 2: these are products and sums of float32 that are off by
//   a few roundings (2^-24) of |logit| * scale and |reference| * scale. `far` is |largest| + |reference|. Logits much
//   lower than the largest are off by more, but weigh too little to matter: 40 allows for those.
// slack_ bounds the absolute error of target_: p * error_ times all that has been added to find it, which is more than
// the mass where weights of patched tokens have been subtracted and added. weigh_row() gives up where these bounds are
// not small, or where the largest logit is so far from the reference that float32 could overflow or underflow.
#pragma once

#include <optional>
#include <span>

#include "sampling/decode_step/gumbel_race.h"
#include "sampling/decode_step/mass_estimate.h"
#include "sampling/decode_step/swept_row.h"
#include "sampling/decode_step/weighing_pass.h"

namespace decodestep::DECODESTEP_BUILD {

template <LogitType type>
class Nucleus {
  public:
    // `filters` are the steps after the row's patches and temperature.
    Nucleus(PatchedRow<type>& row, std::span<const Step> filters) : row_(row), list_(row.list), filters_(filters) {}

    // The token; nothing where the filters are others, or the bounds of the sums cannot tell.
    std::optional<int64_t> draw(uint64_t seed, uint32_t position) {
        if (!read_filters()) return {};
        const MassEstimate sample(row_.logits, scale_);
        if (!weigh_row(sample)) return {};
        list_superset(sample);
        for (;;) {
            GumbelRace race(seed, position);
            race.enter_all(list_.ids, list_.scores, list_.n);
            switch (membership(race.winner(), race.score())) {
                case Membership::inside:
                    return race.winner();
                case Membership::undecided:
                    return {};
                case Membership::outside:
                    drop_from(race.winner(), race.score());
            }
        }
    }

  private:
    enum class Membership { inside, outside, undecided };

    // Whether the filters are top-p and any number of min-p, none of which keeps a number of tokens at least.
    bool read_filters() {
        if (filters_.empty() || filters_[0].kind != StepKind::top_p || filters_[0].min_keep > 1) return false;
        p_ = filters_[0].amount;
        for (const Step& filter : filters_.subspan(1)) {
            if (filter.kind != StepKind::min_p || filter.min_keep > 1) return false;
            least_weight_ = std::max(least_weight_, filter.amount);
        }
        scale_ = static_cast<float>(1.0 / (kLn2 * row_.temperature()));
        return p_ > 0 && p_ < 1 && scale_ > 0 && std::isfinite(scale_);
    }

    bool has_min_p() const { return least_weight_ > 0; }

    // Finds the mass of the row, and so the target. Without min-p the same pass lists what the sample suggests; with
    // min-p, which needs a shorter list, it finds the groups' maxima. False where the bounds of the sums are not good.
    // The reference is the sample's largest logit; if that is too far from the row's, the row is weighed again.
    bool weigh_row(const MassEstimate<type>& sample) {
        const auto likely = [&](double mass, auto&&... meanwhile) {
            return sample.logit_above_tail(kTailUnlisted * (1 - p_) * mass, meanwhile...);
        };
        const auto prefetch = [&](size_t block) {
            if (block < row_.logits.blocks()) row_.logits.prefetch_block(block);
        };
        if (std::isfinite(sample.max_logit()) &&
            weigh_row(sample.max_logit(), has_min_p() ? kListsNothing : likely(sample.mass(), prefetch), likely))
            return true;
        const float max_logit = swept().find_max();
        return std::isfinite(max_logit) && weigh_row(max_logit, kListsNothing, likely);
    }

    template <class Likely>
    bool weigh_row(float reference, float threshold, Likely&& likely) {
        reference_ = reference;
        weight_ = {broadcast(scale_), broadcast(-scale_ * reference_)};
        const double unpatched = has_min_p() ? weigh_and_find_maxima() : weigh_and_list(threshold, likely);
        find_max();
        if (!row_.scales_plainly(max_logit_)) return false;
        max_score_ = row_.score_of(max_logit_);
        return find_target_and_errors(unpatched);
    }

    SweptRow<type>& swept() {
        if (!swept_) swept_.emplace(row_);
        return *swept_;
    }

    double weigh_and_find_maxima() {
        const auto [mass, maxima] = weighing_pass().weigh_groups();
        row_.take(maxima);
        list_.n = 0;
        return mass;
    }

    template <class Likely>
    double weigh_and_list(float threshold, Likely&& likely) {
        const auto [mass, complete_from] = weighing_pass().weigh_and_list(threshold, likely);
        list_overlay(complete_from);
        return mass;
    }

    WeighingPass<type> weighing_pass() { return {row_.logits, weight_, list_, row_.overlay.count() > 0}; }

    // Appends the patched tokens from a threshold on; the list is complete down to it then.
    void list_overlay(float threshold) {
        threshold_ = threshold;
        row_.overlay.each_from(threshold_, [&](int32_t id, float now) {
            list_.ids[list_.n] = id;
            list_.scores[list_.n++] = now;
        });
    }

    // The list, if it has any token, has the highest: it is complete downwards.
    void find_max() {
        const float listed = list_.max_score();
        max_logit_ = listed > kMinusInfinity ? listed : swept().find_max();
    }

    bool find_target_and_errors(double unpatched) {
        const Overlay& overlay = row_.overlay;
        double mass = unpatched, touched = unpatched;
        for (size_t i = 0; i < overlay.count(); i += kLanes) {
            const Mask there = overlay.count() - i < kLanes ? (1u << (overlay.count() - i)) - 1 : kAllLanes;
            const double raw = sum(select(there, weight_(load(overlay.raw() + i)))),
                         now = sum(select(there, weight_(load(overlay.now() + i))));
            mass += now - raw;
            touched += now + raw;
        }
        const double max = max_logit_, reference = reference_;
        error_ = 0x1p-17 + ((std::fabs(max) + std::fabs(reference)) * scale_ + 40) * 0x1p-21;
        target_ = p_ * mass;
        slack_ = p_ * error_ * touched;
        const double apart = (max - reference) * scale_;
        const bool in_range = apart > -60 && apart < 100 && error_ < 0.05;  // where not, the sums may be anything
        return in_range && slack_ < 0.05 * target_;
    }

    // Lowers the threshold until the list holds the nucleus for certain; (A) and (B) of the proof. Turns the list's
    // logits into scores.
    void list_superset(const MassEstimate<type>& sample) {
        const float below_is_outside =
            has_min_p() ? row_.lower_bound_of_probability(max_logit_, least_weight_) : kMinusInfinity;
        for (double by = 0.5 * row_.temperature();; by *= 2) {
            if (threshold_ < kListsNothing &&
                (scale_list_and_weigh() * (1 - error_) >= target_ + slack_ || threshold_ <= below_is_outside))
                return;
            float lower = lowered(std::min(threshold_, max_logit_), by);
            if (reference_ == sample.max_logit())
                lower = std::min(lower, sample.logit_above_tail(kTailUnlisted * (1 / p_ - 1) * target_));
            if (has_min_p()) {
                threshold_ = std::max(below_is_outside, lower);
                swept().list_from(threshold_);
            } else {
                list_overlay(weighing_pass().list_from(lower));
            }
        }
    }

    static float lowered(float t, double by) {
        const auto lower = static_cast<float>(static_cast<double>(t) - by - std::fabs(static_cast<double>(t)) * 1e-3);
        return std::isnan(lower) ? kMinusInfinity : lower;
    }

    // Turns the list's logits into scores. Returns the sum of the weights whose scores exceed that of the threshold.
    double scale_list_and_weigh() {
        const f32x16 divisor = broadcast(static_cast<float>(row_.temperature()));
        const f32x16 lowest = broadcast(row_.score_of(threshold_));
        return sum_over_list([&](size_t i) {
            const f32x16 x = load(list_.scores + i), s = row_.is_scaled() ? x / divisor : x;
            store(list_.scores + i, s);
            return select(lanes_at(i) & ~at_least(lowest, s), weight_(x));
        });
    }

    Membership membership(int64_t id, float score) const {
        const auto [mass, is_first] = above(id, score);
        if (is_first) return Membership::inside;
        const double weight = natural_exp(static_cast<double>(score) - static_cast<double>(max_score_));
        if (!(weight >= least_weight_)) return Membership::outside;
        if (mass * (1 + error_) < target_ - slack_) return Membership::inside;
        return mass * (1 - error_) < target_ + slack_ ? Membership::undecided : Membership::outside;
    }

    struct Above {
        double mass;
        bool is_first;  // no token of the list ranks before it
    };

    // The tokens of the list that rank before one.
    Above above(int64_t id, float score) const {
        const f32x16 bound = broadcast(score);
        const LogitWeight weight = {broadcast(kLog2E), weight_.offset};  // of scores, which are divided already
        Mask any = 0;
        const double mass = sum_over_list([&](size_t i) {
            const f32x16 s = load(list_.scores + i);
            const Mask not_above = at_least(bound, s);
            Mask mask = ~not_above & lanes_at(i);
            for (Mask equal = not_above & at_least(s, bound) & lanes_at(i); equal; equal &= equal - 1)
                if (list_.ids[i + static_cast<size_t>(std::countr_zero(equal))] < id) mask |= equal & -equal;
            any |= mask;
            return select(mask, weight(s));
        });
        return {mass, any == 0};
    }

    // Drops a token, and what ranks after it.
    void drop_from(int64_t id, float score) {
        list_.keep_if(
            [&](size_t i) { return list_.scores[i] > score || (list_.scores[i] == score && list_.ids[i] < id); });
    }

    // The sum of the vectors weights(0), weights(16) ... over the list: a block of them in float32, blocks in float64.
    template <class Weights>
    double sum_over_list(Weights&& weights) const {
        double total = 0;
        for (size_t i = 0; i < list_.n;) {
            f32x16 sums = broadcast(0.0f);
            for (const size_t end = std::min(list_.n, i + kLogitsBlock); i < end; i += kLanes) sums = sums + weights(i);
            total += static_cast<double>(sum(sums));
        }
        return total;
    }

    Mask lanes_at(size_t i) const { return i + kLanes <= list_.n ? kAllLanes : (1u << (list_.n - i)) - 1; }

    static constexpr float kListsNothing = std::numeric_limits<float>::infinity();
    static constexpr double kTailUnlisted = 0.9;  // the share of what top-p may drop that the guesses leave unlisted

    PatchedRow<type>& row_;
    Candidates& list_;
    const std::span<const Step> filters_;
    std::optional<SweptRow<type>> swept_;
    double p_ = 0;
    double least_weight_ = 0;           // that min-p keeps
    float scale_ = 0;                   // from a difference of logits to an exponent of two
    float reference_ = 0;               // the logit whose weight is 1 in the sums
    LogitWeight weight_{};              // relative to the reference
    float threshold_ = kListsNothing;   // every token whose logit is at least that is listed
    float max_logit_ = kMinusInfinity;  // of the patched row
    float max_score_ = 0;
    double error_ = 0;               // of a sum of weights, relative
    double target_ = 0, slack_ = 0;  // the mass that top-p fills, and how far off it may be
};

}  // namespace decodestep::DECODESTEP_BUILD
