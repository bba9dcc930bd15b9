// Sums over all tokens of a patched and scaled row without listing it, with the operations and the order of additions
// of reference.py; and the log-probabilities that follow from them.
#pragma once

#include <optional>

#include "sampling/decode_step/swept_row.h"

namespace decodestep::DECODESTEP_BUILD {

template <LogitType type>
class RowSums {
  public:
    // nullopt unless every score is the logit divided by the temperature. The row's list is overwritten.
    static std::optional<RowSums> of(SweptRow<type>& swept) {
        const float max_logit = swept.find_max();
        if (!swept.row().scales_plainly(max_logit)) return {};
        return RowSums(swept, max_logit);
    }

    SweptRow<type>& swept() const { return swept_; }
    float max_logit() const { return max_logit_; }

    // The sum of the weights, exp(score - largest score).
    double mass() const {
        return sum_of([](double below_max) { return natural_exp(below_max); });
    }

    double log_probability(float score, double log_mass) const {
        return (static_cast<double>(score) - max_score_) - log_mass;
    }

    // Of the probabilities, whose weights have that sum.
    double entropy(double mass) const {
        const double log_mass = natural_log(mass);
        return -sum_of([=](double below_max) {
            const double log = below_max - log_mass, share = natural_exp(log);
            return share * (share > 0 ? log : 0.0);
        });
    }

    // Log-probabilities of the token and of the most likely ones; the row's list is overwritten.
    void report(RowLogprobs& out, size_t wanted, int64_t token) const {
        const double log_mass = natural_log(mass());
        const auto log_of = [&](float x) { return log_probability(row_.score_of(x), log_mass); };
        const auto id = static_cast<size_t>(token);
        out.chosen = log_of(row_.overlay.holds(id) ? row_.overlay.now_of(id) : row_.logits.at(id));
        out.count = 0;
        if (wanted == 0) return;
        Candidates& list = row_.list;
        swept_.list_from(lowest_with_value_of(swept_.reached_by(wanted), log_of));
        list.keep_if([&](size_t i) { return row_.score_of(list.scores[i]) > kMinusInfinity; });
        double* const logs = row_.work.logs.get();
        for (size_t i = 0; i < list.n; ++i) logs[i] = log_of(list.scores[i]);
        list.report_most_likely(out, wanted, {logs});
    }

  private:
    RowSums(SweptRow<type>& swept, float max_logit)
        : swept_(swept), row_(swept.row()), max_logit_(max_logit), max_score_(row_.score_of(max_logit)) {}

    // The lowest logit with the value of t: equal values are ranked by their ids, and rounding may give logits below t
    // the same value.
    template <class Rising>
    static float lowest_with_value_of(float t, Rising&& value) {
        uint32_t low = ordered(kMinusInfinity), high = ordered(t);
        while (low < high) {
            const uint32_t middle = low + (high - low) / 2;
            if (value(from_ordered(middle)) < value(t))
                low = middle + 1;
            else
                high = middle;
        }
        return from_ordered(low);
    }

    // The sum of term(score - largest score) over the vocabulary. Tokens at -inf take part, so term(-inf) must be 0.
    template <class Term>
    double sum_of(Term&& term) const {
        const f32x16 divisor = broadcast(static_cast<float>(row_.temperature()));
        double parts[kLanes] = {};
        for (size_t block = 0; block < row_.logits.blocks(); ++block)
            row_.logits.each_vector(block, [&](f32x16 x, size_t i) {
                float scores[kLanes];
                store(scores, x / divisor);
                row_.overlay.each_of_sixteen(i, [&](size_t lane, float now) { scores[lane] = row_.score_of(now); });
                for (int lane = 0; lane < kLanes; ++lane)
                    parts[lane] += term(static_cast<double>(scores[lane]) - max_score_);
            });
        return folded(parts);
    }

    SweptRow<type>& swept_;
    PatchedRow<type>& row_;
    const float max_logit_;
    const double max_score_;
};

}  // namespace decodestep::DECODESTEP_BUILD
