#include "sampling/decode_step/candidate_list.h"

#include "core/exact_math.h"

namespace decodestep::DECODESTEP_BUILD {

void CandidateList::unmark_all() { std::fill_n(work.kept.get(), n, uint8_t{0}); }

void CandidateList::keep_marked() {
    keep_if([&](size_t i) { return work.kept[i] != 0; });
}

// Marks the `count` highest scores, lowest ids first among equals, and no others.
void CandidateList::mark_highest(size_t count) {
    unmark_all();
    visit_by_score([&](uint32_t index) {
        if (count-- == 0) return false;
        work.kept[index] = 1;
        return true;
    });
}

double CandidateList::total(const double* values) const {
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

CandidateList::Weights CandidateList::find_weights() {
    const float largest = max_score();
    double* const weights = work.weights.get();
    if (std::isinf(largest)) {
        for (size_t i = 0; i < n; ++i) weights[i] = scores[i] == largest;
    } else {
        const double offset = largest;
        for (size_t i = 0; i < n; ++i) weights[i] = natural_exp(static_cast<double>(scores[i]) - offset);
    }
    return {weights};
}

double CandidateList::mass_of(Weights weights) const { return whole_row.mass ? *whole_row.mass : total(weights.of); }

CandidateList::LogProbabilities CandidateList::find_log_probabilities() {
    const double mass = natural_log(mass_of(find_weights()));
    const float largest = max_score();
    for (size_t i = 0; i < n; ++i)
        work.logs[i] = std::isinf(largest) ? (scores[i] == largest ? -mass : -std::numeric_limits<double>::infinity())
                                           : (static_cast<double>(scores[i]) - static_cast<double>(largest)) - mass;
    return {work.logs.get()};
}

// The weights are overwritten.
CandidateList::Entropy CandidateList::find_entropy(LogProbabilities logs) {
    double *const shares = work.weights.get(), *const terms = work.terms.get();
    for (size_t i = 0; i < n; ++i) {
        shares[i] = natural_exp(logs.of[i]);
        terms[i] = shares[i] * (shares[i] > 0 ? logs.of[i] : 0.0);
    }
    return {whole_row.entropy ? *whole_row.entropy : -total(terms), shares, terms};
}

// The k-th largest score, k <= n.
float CandidateList::kth_score(size_t k) const {
    float* const copy = work.selection.get();
    std::copy(scores, scores + n, copy);
    std::nth_element(copy, copy + (k - 1), copy + n, [](float a, float b) { return a > b; });
    return copy[k - 1];
}

// Log-probabilities of the token, -inf where it is no candidate (a forced token may not be), and of the most likely
// ones.
void CandidateList::report(RowLogprobs& out, size_t wanted, int64_t token) {
    out.chosen = -std::numeric_limits<double>::infinity();
    out.count = 0;
    if (n == 0) return;
    const LogProbabilities logs = find_log_probabilities();
    const size_t index = index_of(ids, n, token);
    if (index < n) out.chosen = logs.of[index];
    report_most_likely(out, wanted, logs);
}

void CandidateList::report_most_likely(RowLogprobs& out, size_t wanted, LogProbabilities logs) {
    out.count = 0;
    if (wanted == 0 || n == 0) return;
    set_sort_keys([&](size_t i) { return -logs.of[i]; });
    visit_by_key([&](uint32_t index) {
        out.ids[out.count] = ids[index];
        out.values[out.count] = logs.of[index];
        return ++out.count < wanted;
    });
}

}  // namespace decodestep::DECODESTEP_BUILD
