// The activation forms that products with a given set of weights need.
#pragma once

#include <initializer_list>

#include "linear/activations.h"
#include "linear/linear_panels.h"

namespace decodestep::DECODESTEP_BUILD {

struct Forms {
    bool as_values = false, as_bytes = false;

    Forms() = default;
    // Weights that are not given are skipped.
    Forms(std::initializer_list<const LinearPanelWeight*> weights) {
        for (const LinearPanelWeight* w : weights)
            if (w->data) (quantises_activations(w->format) ? as_bytes : as_values) = true;
    }

    size_t floats(size_t rows, size_t width) const { return Activations::floats(rows, width, as_values, as_bytes); }
    // space: of floats(rows, width) floats.
    Activations in_space(float* space, size_t rows, size_t width) const {
        return Activations::in_space(space, rows, width, as_values, as_bytes);
    }
};

}  // namespace decodestep::DECODESTEP_BUILD
