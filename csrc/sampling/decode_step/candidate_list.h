// The tokens of a row that are above -inf, ascending, with their scores: ranked, weighed and summed as reference.py has
// it, operation for operation.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "sampling/decode_step/decode_step.h"
#include "sampling/row/ranking.h"
#include "sampling/row/workspace.h"

namespace decodestep::DECODESTEP_ISA {

struct CandidateList {
    int32_t* ids;
    float* scores;
    size_t n;
    Workspace& work;
    // The sum of the weights of a row, and its entropy, where the list is no more than the head of it.
    struct {
        std::optional<double> mass, entropy;
    } row = {};

    template <class Kept>
    DECODESTEP_INLINE void keep(Kept&& kept) {
        size_t left = 0;
        for (size_t i = 0; i < n; ++i) {
            const bool stays = kept(i);
            ids[left] = ids[i];
            scores[left] = scores[i];
            left += stays;
        }
        n = left;
    }

    float top() const { return largest(scores, n); }

    template <class Key>
    void rank(Key&& key);
    template <class Visit>
    void in_order(Visit&& visit);
    template <class Visit>
    void in_order_of_scores(Visit&& visit);
    void mark_none();
    void mark_highest(size_t count);
    void keep_marked();
    double total(const double* values) const;
    void find_weights();
    double weigh();
    void log_probabilities();
    double entropy();
    float kth(size_t k) const;
    void report(Logprobs& logprobs, int which, int64_t token);
    void report_likeliest(Logprobs& logprobs, int which);
};

// The place of an id among ascending ids, or `n`.
DECODESTEP_INLINE size_t place_of(const int32_t* ids, size_t n, int64_t id) {
    const int32_t* at = std::lower_bound(ids, ids + n, id, [](int32_t a, int64_t b) { return a < b; });
    return at != ids + n && *at == id ? static_cast<size_t>(at - ids) : n;
}

// Fills the ranking with a key for each candidate; `in_order` gives them, lowest key first.
template <class Key>
void CandidateList::rank(Key&& key) {
    for (size_t i = 0; i < n; ++i) work.ranking[i] = {key(i), static_cast<uint32_t>(i)};
}

// Sorts no more of the ranking than is asked for: visit(place) returns whether to go on.
template <class Visit>
void CandidateList::in_order(Visit&& visit) {
    const auto before = [](const Ranked& a, const Ranked& b) {
        return a.key < b.key || (a.key == b.key && a.place < b.place);
    };
    Ranked* const items = work.ranking.get();
    for (size_t done = 0, chunk = 128; done < n; chunk *= 2) {
        const size_t end = std::min(n, done + chunk);
        if (end < n) std::nth_element(items + done, items + end, items + n, before);
        std::sort(items + done, items + end, before);
        for (; done < end; ++done)
            if (!visit(items[done].place)) return;
    }
}

// Highest score first, and the lowest id among equals. A few are put in their places by counting, which has no branch
// to guess.
template <class Visit>
void CandidateList::in_order_of_scores(Visit&& visit) {
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
    store(scores + n, broadcast(kNothing));
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

inline void CandidateList::mark_none() { std::fill_n(work.kept.get(), n, uint8_t{0}); }

inline void CandidateList::keep_marked() {
    keep([&](size_t i) { return work.kept[i] != 0; });
}

// Marks the `count` highest scores, the lowest ids first among equals, and no others.
inline void CandidateList::mark_highest(size_t count) {
    mark_none();
    in_order_of_scores([&](uint32_t place) {
        if (count-- == 0) return false;
        work.kept[place] = 1;
        return true;
    });
}

// Sixteen partial sums, token i in number i mod 16, folded in halves.
DECODESTEP_INLINE double folded(double (&parts)[kLanes]) {
    for (int width = kLanes / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; ++lane) parts[lane] += parts[lane + width];
    return parts[0];
}

inline double CandidateList::total(const double* values) const {
    double parts[kLanes] = {};
    for (size_t i = 0; i < n;) {
        if (ids[i] % 16 == 0 && i + 16 <= n && ids[i + 15] == ids[i] + 15) {
            for (int lane = 0; lane < 16; ++lane) parts[lane] += values[i + lane];
            i += 16;
        } else {
            parts[ids[i] % 16] += values[i];
            ++i;
        }
    }
    return folded(parts);
}

// weights = exp(score - largest); beside +inf, 1 for these and 0 for others.
inline void CandidateList::find_weights() {
    const float largest = top();
    double* const weights = work.weights.get();
    if (std::isinf(largest)) {
        for (size_t i = 0; i < n; ++i) weights[i] = scores[i] == largest;
    } else {
        const double offset = largest;
        for (size_t i = 0; i < n; ++i) weights[i] = natural_exp(static_cast<double>(scores[i]) - offset);
    }
}

// The weights, and their sum over the row.
inline double CandidateList::weigh() {
    find_weights();
    return row.mass ? *row.mass : total(work.weights.get());
}

// logs = log softmax.
inline void CandidateList::log_probabilities() {
    const double mass = natural_log(weigh());
    const float largest = top();
    for (size_t i = 0; i < n; ++i)
        work.logs[i] = std::isinf(largest) ? (scores[i] == largest ? -mass : -std::numeric_limits<double>::infinity())
                                           : (static_cast<double>(scores[i]) - static_cast<double>(largest)) - mass;
}

// Of log softmax in `logs`; leaves the probabilities in `weights`, and p log p in `terms`.
inline double CandidateList::entropy() {
    for (size_t i = 0; i < n; ++i) {
        const double share = natural_exp(work.logs[i]);
        work.weights[i] = share;
        work.terms[i] = share * (share > 0 ? work.logs[i] : 0.0);
    }
    return row.entropy ? *row.entropy : -total(work.terms.get());
}

// The k-th largest score, k <= n.
inline float CandidateList::kth(size_t k) const {
    float* const copy = work.selection.get();
    std::copy(scores, scores + n, copy);
    std::nth_element(copy, copy + (k - 1), copy + n, [](float a, float b) { return a > b; });
    return copy[k - 1];
}

// Log-probabilities of the token, -inf where it is no candidate (a forced one may not be), and of the most likely ones.
inline void CandidateList::report(Logprobs& logprobs, int which, int64_t token) {
    logprobs.chosen[which] = -std::numeric_limits<double>::infinity();
    logprobs.found[which] = 0;
    if (n == 0) return;
    log_probabilities();
    const size_t place = place_of(ids, n, token);
    if (place < n) logprobs.chosen[which] = work.logs[place];
    report_likeliest(logprobs, which);
}

// Those of `logs`.
inline void CandidateList::report_likeliest(Logprobs& logprobs, int which) {
    const size_t wanted = std::min(logprobs.wanted, n);
    if (wanted == 0) return;
    rank([&](size_t i) { return -work.logs[i]; });
    size_t& found = logprobs.found[which];
    in_order([&](uint32_t at) {
        logprobs.ids[which][found] = ids[at];
        logprobs.values[which][found] = work.logs[at];
        return ++found < wanted;
    });
}

}  // namespace decodestep::DECODESTEP_ISA
