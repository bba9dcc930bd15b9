// The logits of a row with its leading patches beside them, and the passes that find what of it is worth a list.
#pragma once

#include <span>

#include "sampling/decode_step/candidates.h"
#include "sampling/decode_step/overlay.h"
#include "sampling/row/likely_head.h"
#include "sampling/row/logits.h"
#include "sampling/row/threshold.h"

namespace decodestep::DECODESTEP_ISA {

template <Real real>
class PatchedRow {
  public:
    PatchedRow(Logits<real> row, uint32_t position, Workspace& space)
        : logits(row), work(space), overlay(space), list{{space.ids.get(), space.scores.get(), 0, space}, position} {}

    const Logits<real> logits;
    Workspace& work;
    Overlay overlay;
    Candidates list;

    float largest() const { return largest_; }  // behind `note_largest`
    double temperature() const { return temperature_; }
    bool is_scaled() const { return scaled_; }

    // The temperature that the scores are divided by behind the patches.
    void scale_by(double temperature) {
        temperature_ = temperature;
        scaled_ = true;
    }

    void sweep() {
        if (!swept_) logits.sweep(work);
        note_sweep();
    }

    // Behind any pass that has found group_max.
    void note_sweep() {
        swept_ = true;
        known_ = {work.group_max.get(), logits.blocks() * kLanes};
    }

    // Instead of a sweep: lists what reaches a threshold that is likely to let `count` tokens through. False where
    // there is no such threshold, or it lets too many through.
    bool guess(size_t count) {
        const LikelyHead head(logits, work);
        const float threshold = head.threshold(count);
        if (!std::isfinite(threshold)) return false;
        const size_t most = 1024 + 8 * count;
        list.n = head.list(threshold, most);
        if (list.n > most) return false;
        guessed_ = threshold;
        known_ = {list.scores, list.n};
        return true;
    }

    // Finds the largest of the patched logits and of all others, even those that patches replace; behind a sweep or a
    // guess.
    void note_largest() { note_largest(decodestep::DECODESTEP_ISA::largest(known_.data(), known_.size())); }

    // The same for a pass that has the maxima in `best`.
    void note_largest(f32x16 best) { note_largest(decodestep::DECODESTEP_ISA::largest(best)); }

    void note_largest(float best) {
        largest_ = std::max(best, decodestep::DECODESTEP_ISA::largest(overlay.now(), overlay.count()));
    }

    // `largest` may be that of a token that was patched away; the list is overwritten.
    void settle_largest() {
        if (overlay.count() == 0) return;
        collect(reached_by(1));
        largest_ = list.n > 0 ? list.top() : kNothing;
    }

    // The largest patched logit, by a sweep.
    void find_largest() {
        sweep();
        note_largest();
        settle_largest();
    }

    // The list of all tokens whose patched logit is at least `threshold`; group_max must be there.
    void collect(float threshold, bool few = true) {
        list.n = few ? logits.template collect<true>(work, threshold) : logits.template collect<false>(work, threshold);
        lay_over(threshold);
    }

    // Behind a guess and the patches: the list of the patched logits from that threshold on. False where no guess was
    // made.
    bool settle_guess() {
        if (!is_guessed()) return false;
        lay_over(guessed_);
        known_ = {list.scores, list.n};
        return true;
    }

    // `collect` from that list. False where it does not reach down so far.
    bool pick(float threshold) {
        if (threshold < guessed_) return false;
        list.keep([&](size_t i) { return list.scores[i] >= threshold; });
        return true;
    }

    // A threshold that `count` patched logits reach, and few more; -inf where what is known can't tell.
    float reached_by(size_t count) const {
        if (count <= 1 && (overlay.count() == 0 || is_guessed())) return largest_;
        if (is_guessed()) return threshold_reached_by(count, 0, largest_, [&](float t) { return known_from(t); });
        return threshold_reached_by(count, count / 4 + 4, largest_, [&](float t) { return surely_at_least(t); });
    }

    // A threshold below `t` by so much that the temperature can't make equal what it keeps apart.
    float below(float t) const {
        if (!scaled_ || t == kNothing) return t;
        const auto divisor = static_cast<float>(temperature_);
        const float lower = t - std::max(std::fabs(t) * 0x1p-20f, 0x1p-100f);
        return lower / divisor < t / divisor ? lower : kNothing;
    }

    // A logit below which exp((x - top) / temperature) < p, whatever the roundings on the way.
    float least_of(double top, double p) const {
        const double drop = temperature_ * (std::log(p) - 1e-7);
        return static_cast<float>(top + drop - (std::fabs(top) - drop) * 1e-5 - 1e-44);
    }

    // Whether dividing by the temperature is all that it does to this row.
    bool plainly_scaled() const {
        return largest_ > kNothing && std::isfinite(largest_) &&
               (!scaled_ || std::isfinite(largest_ / static_cast<float>(temperature_)));
    }

    float scaled(float x) const { return scaled_ ? x / static_cast<float>(temperature_) : x; }

    bool is_as_given() const { return overlay.count() == 0 && !scaled_; }

    // Back to the logits as they are.
    void forget_steps() {
        overlay.clear();
        scaled_ = false;
        temperature_ = 1;
    }

  private:
    bool is_guessed() const { return known_.data() == list.scores; }

    // In a list of the logits that reach the threshold, patched ones stand in for theirs.
    void lay_over(float threshold) {
        if (overlay.count() == 0) return;
        list.keep([&](size_t i) { return !overlay.holds(static_cast<size_t>(list.ids[i])); });
        Ranked* const added = work.ranking.get();
        size_t count = 0;
        overlay.each_from(threshold, [&](int32_t id, float now) {
            added[count++] = {static_cast<double>(now), static_cast<uint32_t>(id)};
        });
        std::sort(added, added + count, [](const Ranked& a, const Ranked& b) { return a.place < b.place; });
        // Merged from behind: the two ascending parts share no id.
        size_t left = list.n;
        list.n += count;
        for (size_t at = list.n; count > 0; --at) {
            if (left > 0 && list.ids[left - 1] > static_cast<int32_t>(added[count - 1].place)) {
                --left;
                list.ids[at - 1] = list.ids[left];
                list.scores[at - 1] = list.scores[left];
            } else {
                --count;
                list.ids[at - 1] = static_cast<int32_t>(added[count].place);
                list.scores[at - 1] = static_cast<float>(added[count].key);
            }
        }
    }

    size_t known_from(float t) const { return count_at_least(known_.data(), known_.size(), t); }

    // How many patched logits are at least t, at the least: every group counts for one of its logits, unless a patch
    // took that away.
    size_t surely_at_least(float t) const {
        const size_t raw = known_from(t);
        const size_t gone = count_at_least(overlay.raw(), overlay.count(), t);
        return raw - std::min(raw, gone) + count_at_least(overlay.now(), overlay.count(), t);
    }

    bool scaled_ = false, swept_ = false;
    std::span<const float> known_;  // logits: the largest of each group, or those from `guessed_` on
    float guessed_ = kNothing;
    double temperature_ = 1;
    float largest_ = kNothing;
};

}  // namespace decodestep::DECODESTEP_ISA
