// A row's history as Python holds it.
#pragma once

#include "bindings/bindings.h"
#include "sampling/decode_step/history.h"

namespace decodestep {

struct HeldHistory {
    explicit HeldHistory(nb::list prompt);

    void append(int64_t token);

    History index;
    nb::list tokens;  // the same tokens, for whoever reads them in Python
    size_t prompt_length;
    bool in_use = false;  // a kernel reads the indexes, perhaps on another thread
};

}  // namespace decodestep
