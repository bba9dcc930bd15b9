// The lightning indexer in a decoder's step, and what attention reads in place of the cache's pages: the rows of the
// selected positions, which are blocks of one row.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "attention/lightning_indexer_tasks.h"
#include "decoder/decoder_forward.h"
#include "decoder/step_buffers.h"
#include "simd/rounding.h"

namespace decodestep::DECODESTEP_BUILD {

// Rows of `width` values in the cache's pages; those of int8 end with their scales.
inline PagedRows rows_in_pages(CacheType type, size_t width) {
    PagedRows rows{nullptr, type, width, 0, nullptr, type == CacheType::i8};
    rows.block_stride = static_cast<ptrdiff_t>(rows.pitch() * kPagePositions);
    return rows;
}

class IndexPlan {
  public:
    // Whether a token of the step sees more positions than it attends to.
    static bool is_needed(const DecoderForward& step) {
        const size_t selected = step.decoder->latent.selected;
        return selected > 0 && std::any_of(step.positions, step.positions + step.tokens,
                                           [=](int64_t position) { return static_cast<size_t>(position) >= selected; });
    }

    // attention: of all positions; it is changed to that of the selected ones, whose rows the plan has.
    IndexPlan(const DecoderForward& step, MlaAttention& attention, StepBuffers& buffers)
        : step_(step),
          sizes_(step.decoder->latent),
          query_(buffers.take(step.tokens * sizes_.index_heads * sizes_.index_width)),
          by_head_(buffers.take(step.tokens * sizes_.index_heads)),
          bytes_(step.index_type == CacheType::i8
                     ? reinterpret_cast<int8_t*>(
                           buffers.take(step.tokens * sizes_.index_heads * sizes_.index_width / sizeof(float)))
                     : nullptr),
          selected_(step.tokens * sizes_.selected) {
        attend_to_rows(attention);
        const PagedRows keys = rows_in_pages(step.index_type, sizes_.index_width);
        page_bytes_ = static_cast<size_t>(keys.block_stride) * value_bytes(keys.type);
        call_ = {.query = bytes_ ? static_cast<const void*>(bytes_) : query_,
                 .weights = by_head_,
                 .tokens = step.tokens,
                 .heads = sizes_.index_heads,
                 .keys = keys,
                 .key_scales = nullptr,
                 .block_size = kPagePositions,
                 .block_table = step.index_table,
                 .blocks = step.table_width,
                 .sequence = step.sequence,
                 .visible = visible_.data(),
                 .count = sizes_.selected,
                 .ordered = false,
                 .selected = selected_.data(),
                 .values = nullptr,
                 .slots = slots_.data(),
                 .slot_table = step.page_table,
                 .threads = step.threads};
        tasks_.emplace(call_);
    }
    IndexPlan(const IndexPlan&) = delete;
    IndexPlan& operator=(const IndexPlan&) = delete;

    void begin(const Indexer& layer) {
        call_.keys.data = step_.index + layer.cache_layer * step_.slab_pages * page_bytes_;
    }

    // Rounds a head of a token's query, if keys are int8, and multiplies its weight by its scale.
    void round_query(size_t row) const {
        if (!bytes_) return;
        const size_t at = row * sizes_.index_width;
        by_head_[row] *= quantise_row(query_ + at, sizes_.index_width, false, bytes_ + at);
    }

    const LightningIndexerTasks& tasks() const { return *tasks_; }
    float* query() const { return query_; }      // [tokens, index_heads, index_width]
    float* by_head() const { return by_head_; }  // [tokens, index_heads]

  private:
    // Row t of the slots is token t's. Tokens that attend to all positions have the rows of their sequences after
    // these, so that those of one sequence read the same.
    void attend_to_rows(MlaAttention& attention) {
        const auto selected = static_cast<int64_t>(sizes_.selected);
        const int64_t last = *std::max_element(step_.sequence, step_.sequence + step_.tokens);
        std::vector<int64_t> longest(static_cast<size_t>(last) + 1);  // of these sequences; 0 of others
        for (size_t t = 0; t < step_.tokens; ++t) {
            const int64_t length = step_.positions[t] + 1, sequence = step_.sequence[t];
            const bool selects = length > selected;
            lengths_.push_back(std::min(length, selected));
            visible_.push_back(selects ? length : 0);
            rows_.push_back(static_cast<int64_t>(t));
            if (selects) continue;
            longest[sequence] = std::max(longest[sequence], length);
            rows_.back() = static_cast<int64_t>(step_.tokens) + sequence;
        }
        slots_.resize((step_.tokens + longest.size()) * sizes_.selected);
        constexpr auto page = static_cast<int64_t>(kPagePositions);
        for (size_t sequence = 0; sequence < longest.size(); ++sequence) {
            const int64_t* const pages = step_.page_table + sequence * step_.table_width;
            int64_t* const slots = slots_.data() + (step_.tokens + sequence) * sizes_.selected;
            for (int64_t p = 0; p < longest[sequence]; ++p) slots[p] = pages[p / page] * page + p % page;
        }
        for (PagedRows* rows : {&attention.kv, &attention.kr})
            rows->block_stride = static_cast<ptrdiff_t>(rows->pitch());
        attention.block_size = 1;
        attention.block_table = slots_.data();
        attention.blocks = sizes_.selected;
        attention.sequence = rows_.data();
        attention.lengths = lengths_.data();
        attention.shares_blocks = false;  // not yet known
    }

    const DecoderForward& step_;
    const LatentSizes& sizes_;
    float *const query_, *const by_head_;
    int8_t* const bytes_;            // queries as they are multiplied by int8 keys; else null
    std::vector<int32_t> selected_;  // [tokens, selected]
    std::vector<int64_t> slots_, rows_, lengths_, visible_;
    size_t page_bytes_ = 0;
    LightningIndexer call_{};
    std::optional<LightningIndexerTasks> tasks_;
};

}  // namespace decodestep::DECODESTEP_BUILD
