// A row of logits with its leading patches and its temperature beside it. The logits are never written to.
#pragma once

#include <optional>

#include "sampling/decode_step/list_steps.h"
#include "sampling/decode_step/overlay.h"
#include "sampling/row/logits.h"

namespace decodestep::DECODESTEP_BUILD {

template <LogitType type>
class PatchedRow {
  public:
    PatchedRow(Logits<type> row, uint32_t position, Workspace& space)
        : logits(row), work(space), overlay(space), list{{space.ids.get(), space.scores.get(), 0, space}, position} {}

    const Logits<type> logits;
    Workspace& work;
    Overlay overlay;  // the patched tokens
    Candidates list;  // what the passes over the row find

    double temperature() const { return temperature_; }
    bool is_scaled() const { return scaled_; }
    bool is_unchanged() const { return overlay.count() == 0 && !scaled_; }

    // The scores are the patched logits divided by `temperature`.
    void scale_by(double temperature) {
        temperature_ = temperature;
        scaled_ = true;
    }

    void forget_steps() {
        overlay.clear();
        scaled_ = false;
        temperature_ = 1;
    }

    // Of the unpatched logits, found once for each row: patches do not change them.
    const GroupMaxima& group_maxima() {
        if (!group_maxima_) group_maxima_.emplace(logits.group_maxima(work));
        return *group_maxima_;
    }
    // Those that a pass has found on its way.
    void take(const GroupMaxima& maxima) { group_maxima_.emplace(maxima); }

    float score_of(float logit) const { return scaled_ ? logit / static_cast<float>(temperature_) : logit; }

    // Whether every score is its logit divided by the temperature, `max_logit` being at least the largest logit.
    // Elsewhere the reference has rules of their own: +inf tokens share the draw, and a temperature so small that
    // scores would overflow divides the differences from the largest.
    bool scales_plainly(float max_logit) const {
        return std::isfinite(max_logit) && (!scaled_ || std::isfinite(max_logit / static_cast<float>(temperature_)));
    }

    // A threshold below `t` whose score is lower too: logits that differ may have equal scores, and what equals the
    // score of `t` must not be lost.
    float below(float t) const {
        if (!scaled_ || t == kMinusInfinity) return t;
        const auto divisor = static_cast<float>(temperature_);
        const float lower = t - std::max(std::fabs(t) * 0x1p-20f, 0x1p-100f);
        return lower / divisor < t / divisor ? lower : kMinusInfinity;
    }

    // A logit such that every lower one has exp((logit - max_logit) / temperature) < p, whatever the roundings.
    float lower_bound_of_probability(double max_logit, double p) const {
        const double drop = temperature_ * (std::log(p) - 1e-7);
        return static_cast<float>(max_logit + drop - (std::fabs(max_logit) - drop) * 1e-5 - 1e-44);
    }

    // Turns a list of the unpatched logits >= threshold into one of the patched logits >= threshold.
    void lay_overlay_on_list(float threshold) {
        if (overlay.count() == 0) return;
        list.keep_if([&](size_t i) { return !overlay.holds(static_cast<size_t>(list.ids[i])); });
        Ranked* const added = work.ranking.get();
        size_t count = 0;
        overlay.each_from(threshold, [&](int32_t id, float now) {
            added[count++] = {static_cast<double>(now), static_cast<uint32_t>(id)};
        });
        std::sort(added, added + count, [](const Ranked& a, const Ranked& b) { return a.index < b.index; });
        merge_into_list(added, count);
    }

  private:
    // Merges tokens in the ascending order of their ids, which are `index`, into the list, which holds none of them;
    // from the end on, so that it can be done in place.
    void merge_into_list(const Ranked* added, size_t count) {
        size_t left = list.n;
        list.n += count;
        for (size_t at = list.n; count > 0; --at) {
            if (left > 0 && list.ids[left - 1] > static_cast<int32_t>(added[count - 1].index)) {
                --left;
                list.ids[at - 1] = list.ids[left];
                list.scores[at - 1] = list.scores[left];
            } else {
                --count;
                list.ids[at - 1] = static_cast<int32_t>(added[count].index);
                list.scores[at - 1] = static_cast<float>(added[count].key);
            }
        }
    }

    std::optional<GroupMaxima> group_maxima_;
    bool scaled_ = false;
    double temperature_ = 1;
};

}  // namespace decodestep::DECODESTEP_BUILD
