// The order in which a stage of a decoder's step reads the panels of its weights.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "linear/panel_product.h"

namespace decodestep::DECODESTEP_BUILD {

// The panels that one stage reads, in order: those of one weight, or of several.
class PanelSweep {
  public:
    // At most three, of which the last ones may not be given.
    PanelSweep(std::initializer_list<const LinearPanelWeight*> weights) {
        for (const LinearPanelWeight* w : weights)
            if (w->data) weights_[given_++] = w;
    }

    size_t count() const { return panels_of(given_).first; }
    // The place of a weight's panels; empty if it is not given.
    Range panels_of(size_t number) const {
        size_t first = 0;
        for (size_t i = 0; i < std::min(number, given_); ++i) first += weights_[i]->count();
        return {first, first + (number < given_ ? weights_[number]->count() : 0)};
    }
    // Panels from `i` on, for prefetching.
    NextPanels from(size_t i) const {
        size_t number = 0;
        while (number + 1 < given_ && i >= panels_of(number).end) ++number;
        const LinearPanelWeight& w = *weights_[number];
        return {w.panel(i - panels_of(number).first), w.panel_bytes()};
    }

  private:
    const LinearPanelWeight* weights_[3];
    size_t given_ = 0;
};

}  // namespace decodestep::DECODESTEP_BUILD
