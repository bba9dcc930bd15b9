// A row's history as a Python object.
#pragma once

#include "bindings/bindings.h"
#include "sampling/decode_step/history.h"

namespace decodestep {

struct HeldHistory {
    explicit HeldHistory(nb::list prompt);

    void append(int64_t token);   // wholly or not at all
    void remove_last() noexcept;  // as History's

    History index;
    nb::list tokens;  // the same tokens, for Python
    size_t prompt_length;
    bool in_use = false;  // by a call: a kernel may be reading the indexes on another thread
};

}  // namespace decodestep
