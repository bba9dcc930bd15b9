// The tokens of a row that are above -inf, ascending by id, with their scores: ranked, weighed and summed as in
// reference.py, operation for operation.
//
// The samplers of Ascend have a list of their own (top_k_top_p_sample/survivors.h): theirs holds NaN and -inf too, is
// itself put in order, and its sums are those of another specification.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>

#include "sampling/decode_step/decode_step.h"
#include "sampling/row/keep_entries.h"
#include "sampling/row/ranking.h"
#include "sampling/row/workspace.h"
#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {

struct CandidateList {
    int32_t* ids;
    float* scores;
    size_t n;
    Workspace& work;
    // Sums over the row, while the list holds no more than its highest tokens. Without a value they are the list's.
    struct {
        std::optional<double> mass, entropy;
    } whole_row = {};

    template <class Kept>
    DECODESTEP_INLINE void keep_if(Kept&& kept) {
        n = keep_entries(n, kept, ids, scores);
    }

    float max_score() const { return largest(scores, n); }
    float kth_score(size_t k) const;

    template <class Key>
    void set_sort_keys(Key&& key);
    template <class Visit>
    void visit_by_key(Visit&& visit);
    template <class Visit>
    void visit_by_score(Visit&& visit);

    void unmark_all();
    void mark_highest(size_t count);
    void keep_marked();

    // Of each candidate: exp(score - largest); where the largest is +inf, 1 for its equals and 0 for others.
    struct Weights {
        const double* of;
    };
    struct LogProbabilities {
        const double* of;
    };
    struct Entropy {
        double value;
        const double *shares, *terms;  // of each candidate: its probability p, and p log p
    };

    double total(const double* values) const;
    Weights find_weights();
    double mass_of(Weights weights) const;  // of the row
    LogProbabilities find_log_probabilities();
    Entropy find_entropy(LogProbabilities logs);

    void report(RowLogprobs& out, size_t wanted, int64_t token);
    void report_most_likely(RowLogprobs& out, size_t wanted, LogProbabilities logs);
};

// The index of an id among ascending ids, or `n`.
DECODESTEP_INLINE size_t index_of(const int32_t* ids, size_t n, int64_t id) {
    const int32_t* at = std::lower_bound(ids, ids + n, id, [](int32_t a, int64_t b) { return a < b; });
    return at != ids + n && *at == id ? static_cast<size_t>(at - ids) : n;
}

// The total of sixteen partial sums, folded in halves. Token i is added to partial sum i mod 16.
DECODESTEP_INLINE double folded(double (&parts)[kLanes]) {
    for (int width = kLanes / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; ++lane) parts[lane] += parts[lane + width];
    return parts[0];
}

// Gives each candidate a key for `visit_by_key`. NaN, which has no place in an order, goes last; keys are NaN only
// where another thread has changed the logits between two passes over them.
template <class Key>
void CandidateList::set_sort_keys(Key&& key) {
    for (size_t i = 0; i < n; ++i) {
        const double own = key(i);
        work.ranking[i] = {own == own ? own : std::numeric_limits<double>::infinity(), static_cast<uint32_t>(i)};
    }
}

// visit(index) in the order of the keys, lowest first, and of the ids among equals, until it returns false. No more is
// sorted than is visited.
template <class Visit>
void CandidateList::visit_by_key(Visit&& visit) {
    const auto before = [](const Ranked& a, const Ranked& b) {
        return a.key < b.key || (a.key == b.key && a.index < b.index);
    };
    Ranked* const items = work.ranking.get();
    for (size_t done = 0, chunk = 128; done < n; chunk *= 2) {
        const size_t end = std::min(n, done + chunk);
        if (end < n) std::nth_element(items + done, items + end, items + n, before);
        std::sort(items + done, items + end, before);
        for (; done < end; ++done)
            if (!visit(items[done].index)) return;
    }
}

// visit(index), highest score first, and lowest id among equals, until it returns false. A short list is ranked by
// counting, which has no branch to mispredict.
template <class Visit>
void CandidateList::visit_by_score(Visit&& visit) {
    constexpr size_t few = 128;
    constexpr uint8_t nobody = 0xFF;
    if (n > few) {
        uint64_t* keys = work.keys.get();
        for (size_t i = 0; i < n; ++i) keys[i] = descending_key(scores[i]) | i;
        keys = sorted_by_upper_half(keys, work.spare_keys.get(), n);
        for (size_t i = 0; i < n; ++i)
            if (!visit(static_cast<uint32_t>(keys[i]))) return;
        return;
    }
    store(scores + n, broadcast(kMinusInfinity));
    uint8_t order[few];
    std::memset(order, nobody, few);
    for (size_t i = 0; i < n; ++i) {
        const f32x16 score = broadcast(scores[i]);
        size_t higher = 0;
        for (size_t j = 0; j < n; j += kLanes)
            higher += static_cast<size_t>(std::popcount(~at_least(score, load(scores + j)) & kAllLanes));
        while (order[higher] != nobody) ++higher;  // taken by equals
        order[higher] = static_cast<uint8_t>(i);
    }
    for (size_t i = 0; i < n; ++i)
        if (!visit(order[i])) return;
}

}  // namespace decodestep::DECODESTEP_BUILD
