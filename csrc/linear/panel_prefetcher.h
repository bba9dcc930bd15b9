// Prefetching of panels.
#pragma once

#include <algorithm>

#include "core/cache_line.h"
#include "linear/linear_panels.h"
#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {

// Prefetches a panel and the beginning of the next one, 32 inputs at a time, at a fixed distance ahead of the product:
// panels are too short for the hardware prefetcher.
template <size_t kBlockBytes>
class BlockPrefetcher {
  public:
    static constexpr size_t kBytes = kBlockBytes;  // of the 32 inputs

    BlockPrefetcher(const uint8_t* panel, const uint8_t* next_panel, size_t blocks)
        : panel_(panel), next_panel_(next_panel), blocks_(blocks), distance_(kPrefetchBytes / kBytes) {
        if (distance_ > blocks) distance_ = blocks;
    }
    // Call when the product reads the 32 inputs of `block`.
    DECODESTEP_INLINE void advance(size_t block) const {
        if (!next_panel_) return;
        const size_t b = block + distance_;
        prefetch(b < blocks_ ? panel_ + b * kBytes : next_panel_ + (b - blocks_) * kBytes, kBytes);
    }

    // The address `bytes` ahead of `block`, at most a panel, which may be in the next one.
    DECODESTEP_INLINE const uint8_t* ahead(size_t block, size_t bytes) const {
        const size_t end = blocks_ * kBytes, at = block * kBytes + std::min(bytes, end);
        return at < end ? panel_ + at : next_panel_ + (at - end);
    }

  private:
    const uint8_t *panel_, *next_panel_;
    size_t blocks_, distance_;
};

template <Format F>
using PanelPrefetcher = BlockPrefetcher<panel_block_bytes(F) * kBlockInputs / panel_block_inputs(F)>;

// Prefetches, into the L2 cache, these tokens' share of the memory that is read after all tokens: the L1 cache is full
// of what the tokens read.
DECODESTEP_INLINE void prefetch_share(const uint8_t* memory, size_t bytes, size_t first, size_t count, size_t tokens) {
    const size_t lines = ceil_div(bytes, kCacheLine), end = (first + count) * lines / tokens;
    for (size_t line = first * lines / tokens; line < end; ++line) prefetch_to_second_level(memory + kCacheLine * line);
}

}  // namespace decodestep::DECODESTEP_BUILD
