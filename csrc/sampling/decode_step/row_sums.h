// Sums over all tokens of a row behind its patches and its temperature, without a list of them: each operation, and the
// order of the additions, is that of reference.py. And what rests on them alone: log-probabilities of the row.
#pragma once

#include "sampling/decode_step/patched_row.h"

namespace decodestep::DECODESTEP_ISA {

// The row's largest score must be known, and plainly scaled.
template <Real real>
class RowSums {
  public:
    explicit RowSums(PatchedRow<real>& row) : row_(row), top_(row.scaled(row.largest())) {}

    // Of the weights, exp(score - largest score).
    double mass() {
        return sum_of([](double below) { return natural_exp(below); });
    }

    // The log-probability of a score, for the logarithm of that mass.
    double log_share(float score, double log_mass) const { return (static_cast<double>(score) - top_) - log_mass; }

    // Of the probabilities, for that mass.
    double entropy(double mass) {
        const double log_mass = natural_log(mass);
        return -sum_of([=](double below) {
            const double log = below - log_mass, share = natural_exp(log);
            return share * (share > 0 ? log : 0.0);
        });
    }

    // Log-probabilities of the token and of the likeliest; the row's list is overwritten.
    void report(Logprobs& logprobs, int which, int64_t token) {
        const double log_mass = natural_log(mass());
        const auto log_of = [&](float x) { return log_share(row_.scaled(x), log_mass); };
        const auto id = static_cast<size_t>(token);
        logprobs.chosen[which] = log_of(row_.overlay.holds(id) ? row_.overlay.now_of(id) : row_.logits.at(id));
        logprobs.found[which] = 0;
        if (logprobs.wanted == 0) return;
        Candidates& list = row_.list;
        row_.collect(lowest_like(row_.reached_by(logprobs.wanted), log_of));
        list.keep([&](size_t i) { return row_.scaled(list.scores[i]) > kNothing; });
        for (size_t i = 0; i < list.n; ++i) row_.work.logs[i] = log_of(list.scores[i]);
        list.report_likeliest(logprobs, which);
    }

  private:
    // Equals are ranked by their ids, and rounding may make lower logits the equals of t.
    template <class Rising>
    static float lowest_like(float t, Rising&& value) {
        uint32_t low = ordered(kNothing), high = ordered(t);
        while (low < high) {
            const uint32_t middle = low + (high - low) / 2;
            if (value(from_ordered(middle)) < value(t))
                low = middle + 1;
            else
                high = middle;
        }
        return from_ordered(low);
    }

    // A token at -inf adds term(-inf), which has to be 0.
    template <class Term>
    double sum_of(Term&& term) {
        const f32x16 divisor = broadcast(static_cast<float>(row_.temperature()));
        double parts[kLanes] = {};
        for (size_t block = 0; block < row_.logits.blocks(); ++block)
            row_.logits.each_vector(block, [&](f32x16 x, size_t i) {
                float scores[kLanes];
                store(scores, x / divisor);
                row_.overlay.each_of_sixteen(i, [&](size_t lane, float now) { scores[lane] = row_.scaled(now); });
                for (int lane = 0; lane < kLanes; ++lane) parts[lane] += term(static_cast<double>(scores[lane]) - top_);
            });
        return folded(parts);
    }

    PatchedRow<real>& row_;
    const double top_;
};

}  // namespace decodestep::DECODESTEP_ISA
