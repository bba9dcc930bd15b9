// The rows of recurrent operators as arguments: copies, because they decide where a kernel reads and writes.
#pragma once

#include "bindings/bindings.h"
#include "recurrent/state_rows.h"

namespace decodestep {

class StateRowsArgument {
  public:
    StateRowsArgument(const Ids& starts, const Ids& read, const Ids& written, size_t tokens, size_t states)
        : starts_(copied(starts)), read_(copied(read)), written_(copied(written)) {
        require(starts_.size() == read_.size() + 1 && written_.size() == read_.size(), "the rows have the wrong shape");
        require(starts_.front() == 0 && starts_.back() == static_cast<int64_t>(tokens) &&
                    std::is_sorted(starts_.begin(), starts_.end()),
                "the rows must have all tokens in order");
        require(all_within(read_, states) && all_within(written_, states), "a state is out of range");
    }

    StateRows rows() const { return {read_.size(), starts_.data(), read_.data(), written_.data()}; }

  private:
    static std::vector<int64_t> copied(const Ids& ids) {
        require_aligned(ids);
        return copy_of(ids);
    }

    std::vector<int64_t> starts_, read_, written_;
};

// Whether the last axis has no gaps.
template <class A>
bool last_axis_is_packed(const A& a) {
    return a.size() == 0 || a.shape(a.ndim() - 1) == 1 || a.stride(a.ndim() - 1) == 1;
}

}  // namespace decodestep
