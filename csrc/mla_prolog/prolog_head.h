// One head and one block of tokens in the MLA prolog: the up-projection of the query and its rope part (w_uq_qr), RoPE,
// and w_uk.
#pragma once

#include <algorithm>
#include <bit>
#include <type_traits>

#include "core/thread_scratch.h"
#include "elementwise/rope.h"
#include "mla_prolog/arena.h"
#include "mla_prolog/float8_rows.h"
#include "mla_prolog/mla_prolog.h"
#include "mla_prolog/projection_tasks.h"
#include "simd/rounding.h"

namespace decodestep::DECODESTEP_BUILD {

// out[i] = int32 sum i * the token's scale * the output's scale
DECODESTEP_INLINE void dequantise(const float* sums, float token, const float* scale, size_t n, float* out) {
    for (size_t i = 0; i < n; ++i)
        out[i] = static_cast<float>(static_cast<int32_t>(std::bit_cast<uint32_t>(sums[i]))) * token * scale[i];
}

// The values of n sums of a token with a weight's outputs from `first` on: times the scales of what is quantised,
// rounded otherwise.
template <class T>
DECODESTEP_INLINE void product_values(const Projection& w, const float* sums, float token, size_t first, size_t n,
                                      float* out) {
    if (w.code() == WeightType::i8) return dequantise(sums, token, w.scale + first, n, out);
    for (size_t i = 0; i < n; ++i)
        out[i] = !w.quantised() ? rounded<T>(sums[i]) : w.scale ? sums[i] * token * w.scale[first + i] : sums[i];
}

// The compressed queries of all tokens: what the heads share.
struct CompressedQueries {
    const MlaProlog& a;
    TokenBlocks blocks;
    ColumnTokens rows;  // as a column w_uq_qr multiplies them
    float* scale;       // [tokens], of quantised rows; not read where their blocks have exponents
    // Whether w_uq_qr has been multiplied for all heads, into up_projected; else each head multiplies its part.
    bool all_heads;
    TokenSums up_projected;

    size_t head_width() const { return a.nope + a.rope; }
};

// Prefetches packed weights that are multiplied next while elementwise work runs.
class PrefetchQueue {
  public:
    PrefetchQueue() = default;
    // Outputs [first, last) of a weight; of one that is not packed, nothing.
    PrefetchQueue(const ColumnWeight& w, size_t first, size_t last) {
        if (!w.packed() || first >= last) return;
        const size_t panel = panel_bytes(w.value, w.in);
        at_ = static_cast<const uint8_t*>(w.data) + first / kPanelOutputs * panel;
        end_ = at_ + panel_count(last - first) * panel;
    }

    const uint8_t* begin() const { return at_; }

    // The next 2 KiB, into the second cache: once for each token. What is left is prefetched by the product itself.
    void prefetch_more() {
        for (const uint8_t* to = at_ + std::min<size_t>(kStep, end_ - at_); at_ < to; at_ += kCacheLine)
            prefetch_to_second_level(at_);
    }

  private:
    static constexpr size_t kStep = 2048;
    const uint8_t *at_ = nullptr, *end_ = nullptr;
};

// One head of a block of tokens. T: Bf16 or float, the type of query and query_rope.
template <class T>
class HeadTask {
  public:
    // Tasks are numbered so that the blocks of tokens of one head follow each other: its weights are read once.
    HeadTask(const CompressedQueries& queries, size_t task)
        : p_(queries),
          a_(queries.a),
          task_(task),
          head_(task / queries.blocks.count),
          begin_(queries.blocks.begin(task % queries.blocks.count)),
          tokens_(queries.blocks.size(task % queries.blocks.count)) {}

    void run() {
        Arena counted;
        place(counted);
        const ThreadScratch memory(ceil_div(counted.bytes(), sizeof(float)));
        Arena arena(memory.data());
        place(arena);
        const ColumnWeight w_uk = head_of_w_uk();
        PrefetchQueue queue(w_uk, 0, a_.latent);
        for (size_t t = 0; t < tokens_; ++t) prefetch_for_write(rope_of(t), a_.rope * sizeof(T));
        const TokenSums sums = up_project(queue.begin());
        for (size_t t = 0; t < tokens_; ++t) {
            queue.prefetch_more();
            prefetch_for_write(query_of(t), query_bytes());
            split(t, sums.row(t));
        }
        queue = next_head();
        multiply_columns({.x = nope_,
                          .begin = 0,
                          .count = tokens_,
                          .w = w_uk,
                          .first = 0,
                          .last = a_.latent,
                          .scratch = scratch_,
                          .next = queue.begin()},
                         [&](size_t t, size_t n, const float* query_sums, size_t) {
                             T* to = query_values_ + t * query_stride() + n;
                             if constexpr (std::is_same_v<T, float>)
                                 std::memcpy(to, query_sums, kPanelOutputs * sizeof(float));
                             else
                                 store_sums(to, query_sums, kPanelOutputs);
                         });
        for (size_t t = 0; t < tokens_; ++t) {
            queue.prefetch_more();
            store_query(t);
        }
    }

  private:
    void place(Arena& arena) {
        const size_t most = p_.blocks.largest();
        up_sums_ = {};
        size_t scratch = scratch_bytes(a_.w_uk, most);
        if (!p_.all_heads) {
            const size_t stride = round_up(p_.head_width(), kLanes);
            up_sums_ = {arena.take<float>(most * stride), stride};
            scratch = std::max(scratch, scratch_bytes(a_.w_uq_qr.columns, most));
        }
        scratch_ = arena.take<uint8_t>(scratch);
        const size_t nope_bytes = ColumnTokens::bytes(a_.w_uk.value, most, a_.nope);
        nope_ = {a_.w_uk.value, most, a_.nope, arena.take<uint8_t>(nope_bytes)};
        nope_row_ = arena.take<T>(a_.nope);
        query_values_ = arena.take<T>(most * query_stride());
        row_ = arena.take<float>(p_.head_width());
    }

    size_t query_stride() const { return round_up(a_.latent, kPanelOutputs); }
    size_t first_output() const { return head_ * p_.head_width(); }

    // The weights that this thread most probably multiplies next.
    PrefetchQueue next_head() const {
        const size_t next = (task_ + static_cast<size_t>(a_.threads)) / p_.blocks.count, width = p_.head_width();
        if (next == head_ || next >= a_.heads || p_.all_heads) return {};
        return PrefetchQueue(a_.w_uq_qr.columns, next * width, (next + 1) * width);
    }

    ColumnWeight head_of_w_uk() const {
        ColumnWeight w = a_.w_uk;
        w.data = static_cast<const uint8_t*>(w.data) + static_cast<ptrdiff_t>(head_) * a_.w_uk_stride;
        return w;
    }

    // The sums of the head's part of w_uq_qr. next: what is multiplied afterwards.
    TokenSums up_project(const uint8_t* next) const {
        const size_t first = first_output();
        if (p_.all_heads)
            return {p_.up_projected.data + begin_ * p_.up_projected.stride + first, p_.up_projected.stride};
        multiply_columns({.x = p_.rows,
                          .begin = begin_,
                          .count = tokens_,
                          .w = a_.w_uq_qr.columns,
                          .first = first,
                          .last = first + p_.head_width(),
                          .scratch = scratch_,
                          .next = next},
                         [&](size_t t, size_t n, const float* sums, size_t count) {
                             std::memcpy(up_sums_.data + t * up_sums_.stride + (n - first), sums,
                                         count * sizeof(float));
                         });
        return up_sums_;
    }

    // Stores the nope part as the input of w_uk, and the rotated rope part as a result. The rope part of a product of
    // what is quantised is not rounded before.
    void split(size_t t, const float* sums) {
        const size_t width = p_.head_width();
        product_values<T>(a_.w_uq_qr, sums, p_.scale[begin_ + t], head_ * width, width, row_);
        convert(row_, a_.nope, nope_row_);
        nope_.read(t, nope_row_);
        const size_t at = (begin_ + t) * a_.rope;
        rotate_to_halves(row_ + a_.nope, a_.rope / 2, a_.sin + at, a_.cos + at, rope_of(t));
    }

    size_t index_of(size_t t) const { return (begin_ + t) * a_.heads + head_; }
    T* rope_of(size_t t) const { return static_cast<T*>(a_.query_rope) + index_of(t) * a_.rope; }
    size_t query_bytes() const { return a_.latent * (a_.query_scale ? 1 : sizeof(T)); }
    uint8_t* query_of(size_t t) const { return static_cast<uint8_t*>(a_.query) + index_of(t) * query_bytes(); }

    void store_query(size_t t) const {
        const T* query_row = query_values_ + t * query_stride();
        if (!a_.query_scale) {
            std::memcpy(query_of(t), query_row, query_bytes());
            return;
        }
        const float scale =
            a_.float8 ? quantise_float8_row(query_row, a_.latent, reinterpret_cast<F8*>(query_of(t)))
                      : quantise_row(query_row, a_.latent, a_.half_away, reinterpret_cast<int8_t*>(query_of(t)));
        a_.query_scale[index_of(t)] = scale;
        // Divide the rope part by the query's scale, so that one scale serves both. If query and rope value are both
        // zero, keep zero instead of 0 / 0.
        T* rope = rope_of(t);
        const float factor = a_.ckv_scale[0];
        for (size_t i = 0; i < a_.rope; ++i) {
            const float value = to_float(rope[i]), quotient = value * factor / scale;
            convert(((scale == 0.0f) & (value == 0.0f)) ? 0.0f : quotient, rope + i);
        }
    }

    const CompressedQueries& p_;
    const MlaProlog& a_;
    const size_t task_, head_, begin_, tokens_;  // begin_: the block's first token
    uint8_t* scratch_ = nullptr;
    TokenSums up_sums_{};        // of this head's part of w_uq_qr, if it multiplies that
    T* query_values_ = nullptr;  // [tokens, query_stride()]
    ColumnTokens nope_;          // the input of w_uk
    T* nope_row_ = nullptr;      // of one token
    float* row_ = nullptr;       // [head_width()]
};

}  // namespace decodestep::DECODESTEP_BUILD
