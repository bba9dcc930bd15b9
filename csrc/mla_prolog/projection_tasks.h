// The product of all tokens with one projection's weight, as tasks that may run in any order, on any threads.
#pragma once

#include <algorithm>
#include <optional>

#include "core/thread_scratch.h"
#include "linear/linear_panels_tasks.h"
#include "linear/linear_tasks.h"
#include "mla_prolog/column_product.h"
#include "mla_prolog/mla_prolog.h"

namespace decodestep::DECODESTEP_BUILD {

// The tokens in blocks of as equal sizes as possible.
struct TokenBlocks {
    static constexpr size_t kLargest = ColumnTokens::kMost;  // whose sums fit the cache beside the weights of a head
    size_t tokens, count;

    explicit TokenBlocks(size_t tokens) : tokens(tokens), count(ceil_div(tokens, kLargest)) {}
    size_t begin(size_t block) const { return block * tokens / count; }
    size_t size(size_t block) const { return begin(block + 1) - begin(block); }
    size_t largest() const { return ceil_div(tokens, count); }
};

// A row of values for each token, `stride` bytes apart.
struct TokenRows {
    uint8_t* data;
    size_t stride;

    template <class V>
    V* row(size_t t) const {
        return reinterpret_cast<V*>(data + t * stride);
    }
};

// The sums of a product, all outputs of a token in a row: float32, or for int8 weights int32 in the same memory.
struct TokenSums {
    float* data;
    size_t stride;  // floats

    const float* row(size_t t) const { return data + t * stride; }
};

class ProjectionTasks {
  public:
    // Floats of a row of sums.
    static size_t sums_stride(const Projection& w) {
        switch (w.form) {
            case WeightForm::columns:
                return round_up(w.columns.out, kLanes);
            case WeightForm::rows:
                return w.rows.out;
            case WeightForm::panels:
                return w.panels.out;
        }
        return 0;
    }

    // No tasks.
    ProjectionTasks() = default;

    // x: the tokens of a column weight, read before any task runs. floats: those of GGUF blocks, rows of float32.
    ProjectionTasks(const Projection& w, const ColumnTokens& x, TokenRows floats, TokenBlocks blocks, TokenSums sums,
                    int threads)
        : w_(&w), x_(x), sums_(sums) {
        const auto call = [&]<class Call>(const auto& weight) {
            return Call{.x = floats.row<float>(0),
                        .x_stride = static_cast<ptrdiff_t>(floats.stride / sizeof(float)),
                        .tokens = blocks.tokens,
                        .w = weight,
                        .y = sums.data,
                        .y_stride = static_cast<ptrdiff_t>(sums.stride),
                        .threads = 1};
        };
        switch (w.form) {
            case WeightForm::columns:
                columns_.emplace(blocks, span_of(w.columns, threads));
                count_ = blocks.count * columns_->spans(w.columns);
                break;
            case WeightForm::rows:
                rows_.emplace(call.operator()<Linear>(w.rows));
                count_ = rows_->multiply_count();
                break;
            case WeightForm::panels:
                panels_.emplace(call.operator()<LinearPanels>(w.panels));
                count_ = panels_->multiply_count();
                break;
        }
    }

    // Whether `read` does anything.
    bool reads_tokens() const { return panels_ || (rows_ && rows_->read_count() > 0); }
    // With GGUF blocks, to be called for every token, once its row is there and before any task runs.
    void read(size_t t) const {
        if (panels_) panels_->read(t);
        if (rows_) rows_->read(t);
    }

    size_t count() const { return count_; }

    void run(size_t task) const {
        if (columns_)
            multiply_span(task);
        else if (panels_)
            panels_->multiply(task);
        else
            rows_->multiply(task);
    }

  private:
    // A task of a column weight is a block of tokens times a span of outputs.
    struct ColumnTasks {
        TokenBlocks blocks;
        size_t span;

        ColumnTasks(TokenBlocks blocks, size_t span) : blocks(blocks), span(span) {}
        size_t spans(const ColumnWeight& w) const { return ceil_div(w.out, span); }
    };

    // A span is two panels. Of a matrix that is not packed it is several, so that a task reads long stretches of the
    // matrix's rows, but no more than leave two spans for each thread.
    static size_t span_of(const ColumnWeight& w, int threads) {
        constexpr size_t least = 2 * kPanelOutputs;
        if (w.layout != ColumnLayout::rows) return least;
        return std::max(least, round_up(w.out / (2 * static_cast<size_t>(threads)), least));
    }

    void multiply_span(size_t task) const {
        const ColumnWeight& w = w_->columns;
        const size_t spans = columns_->spans(w), block = task / spans, begin = columns_->blocks.begin(block),
                     count = columns_->blocks.size(block), first = task % spans * columns_->span;
        const ThreadScratch scratch(scratch_bytes(w, count) / sizeof(float));
        multiply_columns({.x = x_,
                          .begin = begin,
                          .count = count,
                          .w = w,
                          .first = first,
                          .last = std::min(w.out, first + columns_->span),
                          .scratch = reinterpret_cast<uint8_t*>(scratch.data())},
                         [&](size_t t, size_t n, const float* sums, size_t outputs) {
                             std::memcpy(sums_.data + (begin + t) * sums_.stride + n, sums, outputs * sizeof(float));
                         });
    }

    const Projection* w_ = nullptr;
    ColumnTokens x_;
    TokenSums sums_{};
    size_t count_ = 0;
    std::optional<ColumnTasks> columns_;
    std::optional<LinearTasks> rows_;
    std::optional<LinearPanelsTasks> panels_;
};

}  // namespace decodestep::DECODESTEP_BUILD
