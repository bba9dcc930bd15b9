// The tokens of a product with the rows of a weight, as linear/blocked_rows.h reads them.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>

#include "core/cache_line.h"
#include "linear/row_block.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr size_t kInputBlock = 384;

// The tokens of a product, block of inputs by block: [blocks][tokens][kInputBlock]. The last block is padded to whole
// pieces with zeros.
struct BlockedTokens {
    float* values;  // floats() of them
    size_t count, in;

    size_t padded() const { return round_up(in, kLoadValues); }
    size_t floats() const { return count * padded(); }
    size_t blocks() const { return ceil_div(in, kInputBlock); }
    size_t inputs(size_t block) const { return std::min(kInputBlock, padded() - block * kInputBlock); }
    float* token(size_t block, size_t t) const { return values + block * kInputBlock * count + t * inputs(block); }

    // Copies token t, which is at x.
    void copy(size_t t, const float* x) const {
        for (size_t block = 0; block < blocks(); ++block) {
            const size_t first = block * kInputBlock, given = std::min(inputs(block), in - first);
            float* const to = token(block, t);
            std::memcpy(to, x + first, given * sizeof(float));
            std::fill(to + given, to + inputs(block), 0.0f);
        }
    }
};

// Memory for a copy of a product's tokens. Tokens a power of two apart would evict each other from the first-level
// cache.
class CopiedTokens {
  public:
    CopiedTokens(size_t count, size_t in)
        : tokens_{nullptr, count, in},
          memory_(std::make_unique_for_overwrite<CacheLine[]>(cache_lines(tokens_.floats()))) {
        tokens_.values = memory_[0].floats;
    }

    const BlockedTokens& tokens() const { return tokens_; }

  private:
    BlockedTokens tokens_;
    std::unique_ptr<CacheLine[]> memory_;
};

}  // namespace decodestep::DECODESTEP_BUILD
