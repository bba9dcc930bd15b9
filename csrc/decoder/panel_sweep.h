// The order in which a stage of a decoder's step reads the panels of its weights.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "linear/panel_product.h"

namespace decodestep::DECODESTEP_BUILD {

// The panels that one stage reads, in order: those of one weight, or of several.
class PanelSweep {
  public:
    // At most four, of which others than the first may not be given: they have no panels.
    PanelSweep(std::initializer_list<const LinearPanelWeight*> weights) {
        for (const LinearPanelWeight* w : weights) weights_[weight_count_++] = w;
    }

    size_t count() const { return panels_of(weight_count_).first; }
    // The place of a weight's panels.
    Range panels_of(size_t number) const {
        size_t first = 0;
        for (size_t i = 0; i < std::min(number, weight_count_); ++i) first += panels(i);
        return {first, first + (number < weight_count_ ? panels(number) : 0)};
    }
    // Panels from `i` on, for prefetching.
    NextPanels from(size_t i) const {
        size_t number = 0;
        for (size_t next = 1; next < weight_count_; ++next)
            if (weights_[next]->data && i >= panels_of(next).first) number = next;
        const LinearPanelWeight& w = *weights_[number];
        return {w.panel(i - panels_of(number).first), w.panel_bytes()};
    }

  private:
    size_t panels(size_t number) const { return weights_[number]->data ? weights_[number]->count() : 0; }

    const LinearPanelWeight* weights_[4];
    size_t weight_count_ = 0;
};

}  // namespace decodestep::DECODESTEP_BUILD
