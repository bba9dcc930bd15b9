// A row's history as a Python object.
#pragma once

#include "bindings/bindings.h"
#include "core/per_process.h"
#include "sampling/decode_step/history.h"
#include "sampling/decode_step/sequence_endings.h"

namespace decodestep {

// Whether a call of this process uses something. A child that is forked meanwhile has no such call, although it has the
// mark that the call has set.
class UseMark {
  public:
    bool is_set() const { return user_ == &PerProcess<Process>::get(); }
    void set() { user_ = &PerProcess<Process>::get(); }
    void clear() { user_ = nullptr; }

  private:
    struct Process {};  // its address tells a child from its parent
    const Process* user_ = nullptr;
};

struct HeldHistory {
    explicit HeldHistory(nb::list prompt);

    void append(int64_t token);    // wholly or not at all
    void truncate(size_t length);  // keeps the first tokens; the prompt at least. Wholly or not at all

    History index;
    nb::list tokens;  // the same tokens, for Python
    size_t prompt_length;
    UseMark in_use;  // a kernel may be reading the indexes on another thread
};

// The index of a Python object.
const SequenceEndings& sequence_endings_of(nb::handle object);

// The rules for what continues a repetition, checked.
Continuations continuations_of(size_t shortest, size_t longest, const Ids& breakers, size_t range);

}  // namespace decodestep
