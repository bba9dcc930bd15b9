// Attention over some of the keys: what is left of a split of them until it is added to the other splits.
#pragma once

#include "simd/exp.h"

namespace decodestep::DECODESTEP_ISA {

constexpr size_t kSplitKeys = 256;
constexpr float kLowest = -3.4e38f;

constexpr size_t key_splits(size_t length) { return (length + kSplitKeys - 1) / kSplitKeys; }

// What a split contributes to one query: the largest score, and sums of the weights e^(score - largest) and of the
// values so weighted. Splits are added in the order of their keys.
struct Partial {
    float* record;  // the largest score, the sum of the weights; from the second vector on the values, in whole vectors
    size_t width;

    static constexpr size_t floats(size_t width) { return (width + 2 * kLanes - 1) / kLanes * kLanes; }
    float& top() const { return record[0]; }
    float& total() const { return record[1]; }
    float* values() const { return record + kLanes; }

    void clear() const {
        std::memset(record, 0, floats(width) * sizeof(float));
        top() = kLowest;
    }

    // Adds another split of the same query.
    void add(const Partial& other) const {
        const float highest = top() > other.top() ? top() : other.top();
        const f32x16 ours = exp(broadcast(top() - highest)), theirs = exp(broadcast(other.top() - highest));
        for (size_t c = 0; c < width; c += kLanes)
            store(values() + c, fma(load(other.values() + c), theirs, load(values() + c) * ours));
        store_partial(&total(), fma(broadcast(other.total()), theirs, broadcast(total()) * ours), 1);
        top() = highest;
    }

    // scale: null, or what the cached values of these columns were multiplied by.
    void finish(const float* scale, float* out) const {
        const float inverse = 1.0f / total();
        for (size_t c = 0; c < width; ++c) out[c] = scale ? values()[c] * inverse / scale[c] : values()[c] * inverse;
    }
};

// Those of several queries, one behind the other.
struct Partials {
    float* records;
    size_t width;

    static constexpr size_t floats(size_t count, size_t width) { return count * Partial::floats(width); }
    Partials from(size_t i) const { return {records + floats(i, width), width}; }
    Partial operator[](size_t i) const { return {from(i).records, width}; }
};

}  // namespace decodestep::DECODESTEP_ISA
