// The product of tokens with a weight that stores the values of one input together, in its specified precision: int8
// sums are exact, and bfloat16 is multiplied in pairs of inputs.
#pragma once

#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "linear/dense_panels.h"
#include "mla_prolog/column_weight.h"
#include "mla_prolog/dense_token.h"

namespace decodestep::DECODESTEP_BUILD {

// The tokens of a product, in the form in which it reads them.
class ColumnTokens {
  public:
    // The largest number that is multiplied at a time.
    static constexpr size_t kMost = 128;

    ColumnTokens() = default;
    // memory: of bytes(value, tokens, in), aligned to cache lines.
    ColumnTokens(WeightType value, size_t tokens, size_t in, uint8_t* memory)
        : value_(value), tokens_(tokens), in_(in), values_(memory), sums_(memory + tokens * row_bytes(value, in)) {}

    static size_t bytes(WeightType value, size_t tokens, size_t in) {
        return tokens * (row_bytes(value, in) + sizeof(int32_t));
    }

    // Takes token t's values, of the type of the weight's panels.
    template <class V>
    void read(size_t t, const V* row) const {
        if constexpr (std::is_same_v<V, float>) return read_dense_token(rows<float>(), t, row, in_);
        if constexpr (std::is_same_v<V, Bf16>) return decodestep::read_bf16_token({values_, tokens_, t, row, in_});
        if constexpr (std::is_same_v<V, int8_t>) {
            read_dense_token(rows<int8_t>(), t, row, in_);
            int32_t sum = 0;
            for (size_t k = 0; k < in_; ++k) sum += row[k];
            std::memcpy(sums_ + t * sizeof sum, &sum, sizeof sum);
        }
    }

    // Tokens [first, first + count) times `blocks` blocks of one or two panels from w on, panel_stride bytes apart,
    // whose inputs are those from block first_block on; added to the sums unless that is 0. A panel's sums follow those
    // of the one before.
    void multiply(const uint8_t* w, size_t panels, size_t panel_stride, const uint8_t* next, size_t first_block,
                  size_t blocks, size_t first, size_t count, float (*sums)[kPanelOutputs]) const {
        const bool adds = first_block > 0;
        switch (value_) {
            case WeightType::f32:
                return dense_panels<FloatDot<Format::f32>>(
                    {w, next, blocks, rows<float>(), first, count, sums, first_block, adds}, panels, panel_stride);
            case WeightType::bf16:
            case WeightType::f8:
                return decodestep::multiply_bf16_columns(
                    {w, next, panels, panel_stride, blocks, values_, tokens_, first, count, sums, first_block, adds});
            case WeightType::i8:
                return decodestep::multiply_byte_columns({w, next, panels, panel_stride, blocks, rows<int8_t>().values,
                                                          reinterpret_cast<const int32_t*>(sums_), tokens_, first,
                                                          count, sums, first_block, adds});
        }
    }

  private:
    static size_t row_bytes(WeightType value, size_t in) {
        const WeightType stored = panel_type(value);
        const size_t item = stored == WeightType::bf16 ? kBf16TokenBytes : value_bytes(stored);
        return round_up(in * item, DenseRows<uint8_t>::kStretchValues);
    }

    template <class Value>
    DenseRows<Value> rows() const {
        return {reinterpret_cast<Value*>(values_), tokens_};
    }

    WeightType value_ = WeightType::f32;
    size_t tokens_ = 0, in_ = 0;
    uint8_t *values_ = nullptr, *sums_ = nullptr;
};

// Tokens [begin, begin + count), at most ColumnTokens::kMost, times outputs [first, last).
struct ColumnProduct {
    const ColumnTokens& x;
    size_t begin, count;
    ColumnWeight w;
    size_t first, last;
    uint8_t* scratch = nullptr;     // of scratch_bytes(w, count)
    const uint8_t* next = nullptr;  // with packed weights: what the caller reads afterwards, prefetched at the end
};

// A weight that is not packed is packed on the way, packed_bytes of each of some panels at a time; at a stride at which
// they do not all fall into the same sets of the cache. Of NZ, whose columns are contiguous, few panels and less of
// each.
inline size_t packed_bytes(const ColumnWeight& w) { return w.layout == ColumnLayout::nz ? 4096 : 8192; }
inline size_t packed_stride(const ColumnWeight& w) { return packed_bytes(w) + 2 * kCacheLine; }
inline size_t panels_together(const ColumnWeight& w) { return w.layout == ColumnLayout::nz ? 2 : kColumnPanels; }

// Bytes of memory, aligned to cache lines, in which a product packs, and keeps the sums of `tokens` meanwhile.
inline size_t scratch_bytes(const ColumnWeight& w, size_t tokens) {
    return w.packed() ? 0 : panels_together(w) * (packed_stride(w) + tokens * kPanelOutputs * sizeof(float));
}

// Calls sink(t, n, sums, count) for every token t < a.count: `count` sums from output n on.
template <class Sink>
void multiply_columns(const ColumnProduct& a, Sink&& sink) {
    const size_t blocks = ceil_div(a.w.in, kBlockInputs);
    // begin: the first output of the panel, which may lie before that of the product.
    const auto emit = [&](size_t begin, const float (*sums)[kPanelOutputs]) {
        const size_t from = std::max(begin, a.first), end = std::min(begin + kPanelOutputs, a.last);
        for (size_t t = 0; t < a.count; ++t) sink(t, from, sums[t] + (from - begin), end - from);
    };
    if (a.w.packed()) {
        alignas(kCacheLine) float sums[2 * ColumnTokens::kMost][kPanelOutputs];
        const size_t bytes = panel_bytes(a.w.value, a.w.in), end = panel_count(a.last);
        for (size_t p = a.first / kPanelOutputs; p < end; p += 2) {
            const uint8_t* panel = static_cast<const uint8_t*>(a.w.data) + p * bytes;
            const size_t panels = std::min<size_t>(2, end - p);
            a.x.multiply(panel, panels, bytes, p + panels == end && a.next ? a.next : panel + panels * bytes, 0, blocks,
                         a.begin, a.count, sums);
            for (size_t i = 0; i < panels; ++i) emit((p + i) * kPanelOutputs, sums + i * a.count);
        }
        return;
    }
    const size_t together = panels_together(a.w), stride = packed_stride(a.w),
                 slab = packed_bytes(a.w) / panel_bytes(a.w.value, 1);  // in blocks
    const auto sums = reinterpret_cast<float (*)[kPanelOutputs]>(a.scratch + together * stride);
    for (size_t span = a.first; span < a.last; span += together * kPanelOutputs) {
        const size_t end = std::min(a.last, span + together * kPanelOutputs), panels = panel_count(end - span);
        for (size_t b = 0; b < std::max<size_t>(blocks, 1); b += slab) {
            const size_t count = std::min(slab, blocks - b);
            decodestep::pack_columns({a.w, span, end, b, count, a.scratch, stride});
            for (size_t p = 0; p < panels; p += 2)
                a.x.multiply(a.scratch + p * stride, std::min<size_t>(2, panels - p), stride, nullptr, b, count,
                             a.begin, a.count, sums + p * a.count);
        }
        for (size_t p = 0; p < panels; ++p) emit(span + p * kPanelOutputs, sums + p * a.count);
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
