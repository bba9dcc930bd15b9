// A partial softmax, "partial" for short: the attention of a query over a part of the keys, as the maximum of the
// scores (m), the sum of the weights (l) and the weighted sum of the values (o). It can be merged with those over other
// parts.
//
// Keys are divided into splits of kSplitKeys from the start of the sequence. Each split gives one partial per query,
// and the partials of a query are merged in the order of their keys: threads can share a long context, and the bits of
// the result do not depend on how they share it.
#pragma once

#include "core/division.h"
#include "core/exact_math.h"
#include "simd/exp.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr size_t kSplitKeys = 256;
constexpr float kLowest = -3.4e38f;  // the maximum of no score and of -inf alone

constexpr size_t key_splits(size_t length) { return ceil_div(length, kSplitKeys); }

// One query's partial after some of its keys: the maximum of the scores, the sum of the weights e^(score - maximum),
// and the sum of the values times their weights.
struct PartialSoftmax {
    float* record;  // maximum, weight sum; from the second vector on the sum of the values, padded to whole vectors
    size_t width;   // of a value

    static constexpr size_t floats(size_t width) { return round_up(width, kLanes) + kLanes; }
    float& maximum() const { return record[0]; }
    float& weight_sum() const { return record[1]; }
    float* values() const { return record + kLanes; }

    // The empty partial, before any key.
    void clear() const {
        std::memset(record, 0, floats(width) * sizeof(float));
        maximum() = kLowest;
    }

    // Merges the partial of later keys of the same query into this one.
    void merge(const PartialSoftmax& other) const {
        const float highest = maximum() > other.maximum() ? maximum() : other.maximum();
        const f32x16 ours = exp(broadcast(maximum() - highest)), theirs = exp(broadcast(other.maximum() - highest));
        for (size_t c = 0; c < width; c += kLanes)
            store(values() + c, fma(load(other.values() + c), theirs, load(values() + c) * ours));
        store_partial(&weight_sum(), fma(broadcast(other.weight_sum()), theirs, broadcast(weight_sum()) * ours), 1);
        maximum() = highest;
    }

    // Merges a score without a value, which only takes a part of the weights: a sink.
    void merge_sink(float score) const {
        const float highest = maximum() > score ? maximum() : score;
        const f32x16 ours = exp(broadcast(maximum() - highest)), its = exp(broadcast(score - highest));
        for (size_t c = 0; c < width; c += kLanes) store(values() + c, load(values() + c) * ours);
        store_partial(&weight_sum(), fma(broadcast(weight_sum()), ours, its), 1);
        maximum() = highest;
    }

    // out = the weighted mean of the values: the attention output once all keys are merged; NaN where no score was
    // finite. scale: null, or [width], the factors by which the cached values were multiplied when stored.
    void finish(const float* scale, float* out) const {
        const float inverse = maximum() > kLowest ? 1.0f / weight_sum() : __builtin_nanf("");
        for (size_t c = 0; c < width; ++c) out[c] = scale ? values()[c] * inverse / scale[c] : values()[c] * inverse;
    }

    // The logarithm of the sum of e^score; -inf where no score was finite.
    float log_sum() const {
        if (weight_sum() != weight_sum()) return weight_sum();
        return maximum() > kLowest ? static_cast<float>(maximum() + natural_log(weight_sum())) : kMinusInfinity;
    }
};

// The partials of several queries, consecutive in memory.
struct PartialSoftmaxes {
    float* records;
    size_t width;

    static constexpr size_t floats(size_t count, size_t width) { return count * PartialSoftmax::floats(width); }
    PartialSoftmaxes from(size_t i) const { return {records + floats(i, width), width}; }
    PartialSoftmax operator[](size_t i) const { return {from(i).records, width}; }
};

}  // namespace decodestep::DECODESTEP_BUILD
