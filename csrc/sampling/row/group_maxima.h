// The largest logit of every group of a row.
#pragma once

#include "sampling/row/threshold.h"
#include "sampling/row/workspace.h"
#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {

// Whoever holds one knows that a pass over the whole row has found them. They are in the workspace, so only one row has
// them at a time.
class GroupMaxima {
  public:
    // find(block, maxima) writes those of a block, -inf where a group is empty: sixteen.
    template <class Find>
    DECODESTEP_INLINE GroupMaxima(Workspace& work, size_t blocks, Find&& find)
        : values_(work.group_max.get()), count_(blocks * kLanes) {
        for (size_t block = 0; block < blocks; ++block) find(block, work.group_max.get() + block * kLanes);
    }

    f32x16 of_block(size_t block) const { return load(values_ + block * kLanes); }
    float largest() const { return decodestep::DECODESTEP_BUILD::largest(values_, count_); }
    size_t count_at_least(float least) const {
        return decodestep::DECODESTEP_BUILD::count_at_least(values_, count_, least);
    }

  private:
    const float* values_;
    size_t count_;
};

}  // namespace decodestep::DECODESTEP_BUILD
