// A patched row after a pass that shows which of its tokens are worth listing: SweptRow after the pass that finds the
// largest logit of every group, GuessedRow after the pass that lists the logits above a guessed threshold. Both have
// the same interface, and neither can be constructed without its pass.
#pragma once

#include <optional>

#include "sampling/decode_step/patched_row.h"
#include "sampling/row/sampled_threshold.h"
#include "sampling/row/threshold.h"

namespace decodestep::DECODESTEP_BUILD {

// By the largest unpatched logit of every group. The patches must not change while this lives.
template <LogitType type>
class SweptRow {
  public:
    explicit SweptRow(PatchedRow<type>& row)
        : row_(row),
          groups_(row.group_maxima()),
          max_bound_(std::max(groups_.largest(), largest(row.overlay.now(), row.overlay.count()))) {}

    PatchedRow<type>& row() const { return row_; }

    // At least the largest patched logit: it may be that of a token which a patch has lowered.
    float max_bound() const { return max_bound_; }

    // The largest patched logit; the list is overwritten.
    float find_max() {
        if (row_.overlay.count() == 0) return max_bound_;
        list_from(reached_by(1));
        return max_bound_ = row_.list.n > 0 ? row_.list.max_score() : kMinusInfinity;
    }

    // A threshold that `count` patched logits reach, and few more; -inf where the groups do not tell.
    float reached_by(size_t count) const {
        if (count <= 1 && row_.overlay.count() == 0) return max_bound_;
        return threshold_reached_by(count, spare_tokens(count), max_bound_,
                                    [&](float t) { return surely_at_least(t); });
    }

    // Lists all tokens whose patched logit is at least `threshold`. few: whether most vectors hold none.
    void list_from(float threshold, bool few = true) {
        row_.list.n = row_.logits.list_from(threshold, groups_, few, row_.list.ids, row_.list.scores);
        row_.lay_overlay_on_list(threshold);
    }

  private:
    // At most as many as there are patched logits >= t: every group stands for one of its logits, unless a patch has
    // changed that one.
    size_t surely_at_least(float t) const {
        const Overlay& overlay = row_.overlay;
        const size_t unpatched = groups_.count_at_least(t);
        const size_t changed = count_at_least(overlay.raw(), overlay.count(), t);
        return unpatched - std::min(unpatched, changed) + count_at_least(overlay.now(), overlay.count(), t);
    }

    PatchedRow<type>& row_;
    const GroupMaxima groups_;
    float max_bound_;
};

// Before the patches: lists the unpatched logits from a threshold on that is likely to let `count` tokens through, and
// returns it. Nothing where a sample suggests no such threshold, or it lets too many through.
template <LogitType type>
std::optional<float> list_from_guess(PatchedRow<type>& row, size_t count) {
    const SampledThreshold sampled(row.logits, row.work);
    const float threshold = sampled.estimate(count);
    if (!std::isfinite(threshold)) return {};
    const size_t most = 1024 + 8 * count;
    row.list.n = sampled.list_from(threshold, most);
    if (row.list.n > most) return {};
    return threshold;
}

// After the patches: the list holds every patched logit that reaches the guess, which `list_from_guess` returned. The
// patches must not change while this lives.
template <LogitType type>
class GuessedRow {
  public:
    GuessedRow(PatchedRow<type>& row, float guess) : row_(row), guess_(guess) {
        row.lay_overlay_on_list(guess);
        max_bound_ = row.list.max_score();
    }

    // The largest patched logit, -inf where none reaches the guess.
    float max_bound() const { return max_bound_; }

    // A threshold that `count` patched logits reach, and no more than that but for ties; -inf where the list is
    // shorter.
    float reached_by(size_t count) const {
        if (count <= 1) return max_bound_;
        return threshold_reached_by(count, 0, max_bound_,
                                    [&](float t) { return count_at_least(row_.list.scores, row_.list.n, t); });
    }

    // As SweptRow's, from the list. False, and nothing done, where that does not reach down so far.
    bool list_from(float threshold) {
        if (threshold < guess_) return false;
        row_.list.keep_if([&](size_t i) { return row_.list.scores[i] >= threshold; });
        return true;
    }

  private:
    PatchedRow<type>& row_;
    const float guess_;
    float max_bound_;
};

}  // namespace decodestep::DECODESTEP_BUILD
