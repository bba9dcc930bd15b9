// The rows of recurrent operators as arguments: copies, because they decide where a kernel reads and writes.
#pragma once

#include <unordered_map>

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

// Refuses states of sequences that run at once, if one would write what another reads or writes.
inline void require_states_apart(const std::vector<int64_t>& read, const std::vector<int64_t>& written, size_t states) {
    require(all_within(read, states) && all_within(written, states), "a state is out of range");
    std::unordered_map<int64_t, size_t> writer;
    for (size_t row = 0; row < written.size(); ++row)
        require(writer.emplace(written[row], row).second,
                "the tokens of a sequence lie together, and each writes a state of its own");
    for (size_t row = 0; row < read.size(); ++row) {
        const auto found = writer.find(read[row]);
        require(found == writer.end() || found->second == row, "a sequence writes the state that another reads");
    }
}

// Whether the last axis has no gaps.
template <class A>
bool last_axis_is_packed(const A& a) {
    return a.size() == 0 || a.shape(a.ndim() - 1) == 1 || a.stride(a.ndim() - 1) == 1;
}

}  // namespace decodestep
