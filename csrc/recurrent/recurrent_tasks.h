// The tasks of recurrent operators, for the operators and for kernels that run them as their own stages. The tasks of a
// call may run in any order on any threads; the results have the same bits.
#pragma once

#include "recurrent/causal_conv1d.h"
#include "recurrent/gated_delta_rule.h"
#include "recurrent/selective_state_update.h"

namespace decodestep::DECODESTEP_BUILD {

// A head of a row's state, and some of its columns.
size_t task_count(const GatedDeltaRule& call);
void run_task(const GatedDeltaRule& call, size_t task);
size_t task_count(const SelectiveStateUpdate& call);
void run_task(const SelectiveStateUpdate& call, size_t task);

// Channels [first, end) of a row's tokens.
struct ChannelBlock {
    size_t row, first, end;
};

// The channels of all rows of a convolution in blocks of at least `least`: as few as keep the threads busy, because a
// token's channels are read in long stretches, or every token costs a miss of the page table.
class ChannelBlocks {
  public:
    ChannelBlocks(const CausalConv1d& call, size_t least);

    size_t count() const { return rows_ * blocks_; }
    ChannelBlock operator[](size_t number) const;

  private:
    size_t rows_, channels_, width_, blocks_;
};

constexpr size_t kLeastChannels = 256;  // of a block

void convolve(const CausalConv1d& call, const ChannelBlock& block);

}  // namespace decodestep::DECODESTEP_BUILD
