// The logits of a row with its leading patches beside them, and the passes that find what of it is worth a list.
#pragma once

#include "candidates.h"
#include "logits.h"
#include "overlay.h"
#include "threshold.h"

namespace decodestep::DECODESTEP_ISA {

template <Real real>
class PatchedRow {
  public:
    PatchedRow(Logits<real> row, uint32_t position, Workspace& space)
        : logits(row), work(space), overlay(space), list{space.ids.get(), space.scores.get(), 0, position, space} {}

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
        swept_ = true;
    }

    void sweep_mass(float inverse) {
        logits.sweep_mass(work, inverse);
        swept_ = true;
    }

    // Finds the largest of the patched logits and of all others, even those that patches replace; the sweep must be
    // there.
    void note_largest() {
        f32x16 best = broadcast(kNothing);
        for (size_t block = 0; block < logits.blocks(); ++block) best = max(logits.load_maxima(work, block), best);
        note_largest(best);
    }

    // The same for a pass that has the maxima in `best`.
    void note_largest(f32x16 best) {
        largest_ = decodestep::DECODESTEP_ISA::largest(best);
        for (size_t i = 0; i < overlay.count(); ++i) largest_ = std::max(largest_, overlay.now()[i]);
    }

    // `largest` may be that of a token that was patched away; the list is overwritten.
    void settle_largest() {
        if (overlay.count() == 0) return;
        collect(reached_by(1));
        largest_ = list.n > 0 ? list.top() : kNothing;
    }

    // The list of all tokens whose patched logit is at least `threshold`; group_max must be there.
    void collect(float threshold, bool few = true) {
        list.n = few ? logits.template collect<true>(work, threshold) : logits.template collect<false>(work, threshold);
        if (overlay.count() == 0) return;
        list.keep([&](size_t i) { return !overlay.holds(static_cast<size_t>(list.ids[i])); });
        Ranked* const added = work.ranking.get();
        size_t count = 0;
        for (size_t i = 0; i < overlay.count(); ++i)
            if (overlay.now()[i] >= threshold && overlay.now()[i] > kNothing)
                added[count++] = {static_cast<double>(overlay.now()[i]), static_cast<uint32_t>(overlay.ids()[i])};
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

    // A threshold that `count` patched logits reach, and few more; -inf where the groups can't tell.
    float reached_by(size_t count) const {
        if (count <= 1 && overlay.count() == 0) return largest_;
        return threshold_reached_by(count, largest_, [&](float t) { return surely_at_least(t); });
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

  private:
    // How many patched logits are at least t, at the least: every group counts for one of its logits, unless a patch
    // took that away.
    size_t surely_at_least(float t) const {
        const size_t raw = count_at_least(work.group_max.get(), logits.blocks() * kLanes, t);
        const size_t gone = count_at_least(overlay.raw(), overlay.count(), t);
        return raw - std::min(raw, gone) + count_at_least(overlay.now(), overlay.count(), t);
    }

    bool scaled_ = false, swept_ = false;
    double temperature_ = 1;
    float largest_ = kNothing;
};

}  // namespace decodestep::DECODESTEP_ISA
