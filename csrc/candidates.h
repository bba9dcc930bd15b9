// The exact form of a row: the tokens above -inf, ascending, with their scores. Every step as reference.py has it,
// operation for operation.
#pragma once

#include <algorithm>
#include <cmath>

#include "decode_step.h"
#include "lanes.h"
#include "workspace.h"

namespace decodestep::DECODESTEP_ISA {

struct Candidates {
    int32_t* ids;
    float* scores;
    size_t n;
    uint32_t position;
    Workspace& work;

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

    void run(const Step& step);
    void report(Logprobs& logprobs, int which, int64_t token);

  private:
    template <class Change>
    void patch(const Step& step, Change&& change);
    template <class Key>
    void rank(Key&& key);
    template <class Visit>
    void in_order(Visit&& visit);
    void rank_by_score();
    void mark_none();
    void mark_highest(size_t count);
    void keep_marked();
    double total(const double* values) const;
    double weigh();
    void log_probabilities();
    double entropy();
    float kth(size_t k) const;
    void at_least_likely(double least, size_t keep_best);
    void temperature(double temperature);
    void top_p(double p, size_t keep_best);
    void min_p(double p, size_t keep_best);
    void typical(double mass, size_t keep_best);
    void top_h(double share, size_t top);
    void top_n_sigma(double n);
    void xtc(const Step& step);
};

// What to do to one score; shared with the patches that are made before a row becomes a list.
DECODESTEP_INLINE float patched(const Step& step, size_t which, float s) {
    const auto factor = static_cast<float>(step.amount);
    switch (step.what) {
        case Do::penalise:
            return s < 0.0f ? s * factor : s / factor;
        case Do::add:
            return s + step.values[which];
        case Do::lift:
            return std::isfinite(s) ? s + std::fabs(s) * factor : s;
        default:
            return kNothing;  // ban
    }
}

// The place of an id among ascending ids, or `n`.
DECODESTEP_INLINE size_t place_of(const int32_t* ids, size_t n, int64_t id) {
    const int32_t* at = std::lower_bound(ids, ids + n, id, [](int32_t a, int64_t b) { return a < b; });
    return at != ids + n && *at == id ? static_cast<size_t>(at - ids) : n;
}

template <class Change>
void Candidates::patch(const Step& step, Change&& change) {
    for (size_t i = 0; i < step.count; ++i) {
        const size_t place = place_of(ids, n, step.ids[i]);
        if (place < n) scores[place] = change(i, scores[place]);
    }
}

// Fills the ranking with a key for each candidate; `in_order` gives them, lowest key first.
template <class Key>
void Candidates::rank(Key&& key) {
    for (size_t i = 0; i < n; ++i) work.ranking[i] = {key(i), static_cast<uint32_t>(i)};
}

inline void Candidates::rank_by_score() {
    rank([&](size_t i) { return -static_cast<double>(scores[i]); });
}

// Sorts no more of the ranking than is asked for: visit(place) returns whether to go on.
template <class Visit>
void Candidates::in_order(Visit&& visit) {
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

inline void Candidates::mark_none() { std::fill_n(work.kept.get(), n, uint8_t{0}); }

inline void Candidates::keep_marked() {
    keep([&](size_t i) { return work.kept[i] != 0; });
}

// Marks the `count` highest scores, the lowest ids first among equals, and no others.
inline void Candidates::mark_highest(size_t count) {
    mark_none();
    rank_by_score();
    in_order([&](uint32_t place) {
        if (count-- == 0) return false;
        work.kept[place] = 1;
        return true;
    });
}

// Sixteen partial sums, token i in number i mod 16, folded in halves.
inline double Candidates::total(const double* values) const {
    double parts[16] = {};
    for (size_t i = 0; i < n;) {
        if (ids[i] % 16 == 0 && i + 16 <= n && ids[i + 15] == ids[i] + 15) {
            for (int lane = 0; lane < 16; ++lane) parts[lane] += values[i + lane];
            i += 16;
        } else {
            parts[ids[i] % 16] += values[i];
            ++i;
        }
    }
    for (int width = 8; width > 0; width /= 2)
        for (int lane = 0; lane < width; ++lane) parts[lane] += parts[lane + width];
    return parts[0];
}

// weights = exp(score - largest), and their sum; beside +inf, 1 for these and 0 for others.
inline double Candidates::weigh() {
    const float largest = top();
    double* const weights = work.weights.get();
    if (std::isinf(largest)) {
        for (size_t i = 0; i < n; ++i) weights[i] = scores[i] == largest;
    } else {
        const double offset = largest;
        for (size_t i = 0; i < n; ++i) weights[i] = natural_exp(static_cast<double>(scores[i]) - offset);
    }
    return total(weights);
}

// logs = log softmax.
inline void Candidates::log_probabilities() {
    const double mass = natural_log(weigh());
    const float largest = top();
    for (size_t i = 0; i < n; ++i)
        work.logs[i] = std::isinf(largest) ? (scores[i] == largest ? -mass : -std::numeric_limits<double>::infinity())
                                           : (static_cast<double>(scores[i]) - static_cast<double>(largest)) - mass;
}

// Of log softmax in `logs`; leaves the probabilities in `weights`, and p log p in `terms`.
inline double Candidates::entropy() {
    for (size_t i = 0; i < n; ++i) {
        const double share = natural_exp(work.logs[i]);
        work.weights[i] = share;
        work.terms[i] = share * (share > 0 ? work.logs[i] : 0.0);
    }
    return -total(work.terms.get());
}

// The k-th largest score, k <= n.
inline float Candidates::kth(size_t k) const {
    float* const copy = work.selection.get();
    std::copy(scores, scores + n, copy);
    std::nth_element(copy, copy + (k - 1), copy + n, [](float a, float b) { return a > b; });
    return copy[k - 1];
}

inline void Candidates::at_least_likely(double least, size_t keep_best) {
    const double mass = weigh();
    const float best = kth(std::min(keep_best, n));
    keep([&](size_t i) { return work.weights[i] / mass >= least || scores[i] >= best; });
}

inline void Candidates::temperature(double temperature) {
    const float largest = top(), divisor = static_cast<float>(temperature);
    if (std::isinf(largest)) return keep([&](size_t i) { return scores[i] == largest; });
    if (std::isfinite(largest / divisor)) {
        for (size_t i = 0; i < n; ++i) scores[i] /= divisor;
    } else {
        for (size_t i = 0; i < n; ++i)
            scores[i] =
                static_cast<float>((static_cast<double>(scores[i]) - static_cast<double>(largest)) / temperature);
    }
    keep([&](size_t i) { return scores[i] > kNothing; });
}

inline void Candidates::top_p(double p, size_t keep_best) {
    if (p == 1) return;
    const double target = p * weigh();
    mark_none();
    rank_by_score();
    double before = 0;
    size_t count = 0;
    in_order([&](uint32_t place) {
        if (before >= target && count >= keep_best) return false;
        work.kept[place] = 1;
        ++count;
        before += work.weights[place];
        return true;
    });
    keep_marked();
}

inline void Candidates::min_p(double p, size_t keep_best) {
    weigh();
    mark_highest(keep_best);
    keep([&](size_t i) { return work.weights[i] >= p || work.kept[i] != 0; });
}

inline void Candidates::typical(double mass, size_t keep_best) {
    log_probabilities();
    const double surprise = entropy();
    double* const distance = work.logs.get();
    for (size_t i = 0; i < n; ++i) distance[i] = std::fabs(-distance[i] - surprise);
    mark_none();
    rank([&](size_t i) { return distance[i]; });
    double sum = 0, last = 0;
    size_t count = 0;
    in_order([&](uint32_t place) {
        const bool reached = count > 0 && sum >= mass;
        if (reached && count >= keep_best) return false;
        if (count++ < keep_best) work.kept[place] = 1;
        if (reached) return true;
        last = distance[place];
        sum += work.weights[place];
        return true;
    });
    keep([&](size_t i) { return distance[i] <= last || work.kept[i] != 0; });
}

inline void Candidates::top_h(double share, size_t top) {
    mark_highest(top);
    keep_marked();
    log_probabilities();
    entropy();
    rank_by_score();
    double sum = 0;
    in_order([&](uint32_t place) {
        sum += -work.terms[place];
        return true;
    });
    const double limit = share * sum;
    size_t count = 0, within = 0;
    sum = 0;
    in_order([&](uint32_t place) {
        sum += -work.terms[place];
        within += count++ == 0 || sum <= limit;
        return true;
    });
    mark_highest(within);
    keep_marked();
}

inline void Candidates::top_n_sigma(double deviations) {
    const float largest = top();
    if (std::isinf(largest)) return keep([&](size_t i) { return scores[i] == largest; });
    double* const values = work.weights.get();
    for (size_t i = 0; i < n; ++i) values[i] = scores[i];
    const double mean = total(values) / static_cast<double>(n);
    for (size_t i = 0; i < n; ++i) {
        const double apart = static_cast<double>(scores[i]) - mean;
        values[i] = apart * apart;
    }
    const double least = static_cast<double>(largest) - deviations * std::sqrt(total(values) / static_cast<double>(n));
    keep([&](size_t i) { return static_cast<double>(scores[i]) >= least; });
}

inline void Candidates::xtc(const Step& step) {
    constexpr uint32_t coin = 0xFFFFFFFF;  // XTC_COIN of src/decodestep/random.py
    const uint32_t bits = decodestep::noise_bits(noise_state(step.seed, position), coin);
    if (static_cast<double>(uniform(bits)) >= step.probability) return;
    const double mass = weigh();
    size_t count = 0, least = 0;
    for (size_t i = 0; i < n; ++i) {
        const bool likely = work.weights[i] / mass >= step.amount;
        work.kept[i] = !likely;
        if (likely && (count++ == 0 || scores[i] <= scores[least])) least = i;
    }
    if (count < 2) return;
    work.kept[least] = 1;
    keep_marked();
}

// Log-probabilities of the token, -inf where it is no candidate (a forced one may not be), and of the most likely ones.
inline void Candidates::report(Logprobs& logprobs, int which, int64_t token) {
    logprobs.chosen[which] = -std::numeric_limits<double>::infinity();
    logprobs.found[which] = 0;
    if (n == 0) return;
    log_probabilities();
    const size_t place = place_of(ids, n, token);
    if (place < n) logprobs.chosen[which] = work.logs[place];
    const size_t wanted = std::min(logprobs.wanted, n);
    if (wanted == 0) return;
    rank([&](size_t i) { return -work.logs[i]; });
    size_t found = 0;
    in_order([&](uint32_t at) {
        logprobs.ids[which][found] = ids[at];
        logprobs.values[which][found] = work.logs[at];
        return ++found < wanted;
    });
    logprobs.found[which] = found;
}

inline void Candidates::run(const Step& step) {
    if (step.what == Do::force) {
        n = 0;
        for (size_t i = 0; i < step.count; ++i) ids[n++] = static_cast<int32_t>(step.ids[i]);
        std::sort(ids, ids + n, [](int32_t a, int32_t b) { return a < b; });
        n = static_cast<size_t>(std::unique(ids, ids + n, [](int32_t a, int32_t b) { return a == b; }) - ids);
        std::fill(scores, scores + n, 0.0f);
        return;
    }
    if (n == 0) return;
    switch (step.what) {
        case Do::penalise:
        case Do::add:
        case Do::lift:
        case Do::ban:
            patch(step, [&](size_t which, float s) { return patched(step, which, s); });
            return keep([&](size_t i) { return scores[i] > kNothing; });
        case Do::allow: {
            mark_none();
            for (size_t i = 0; i < step.count; ++i) {
                const size_t place = place_of(ids, n, step.ids[i]);
                if (place < n) work.kept[place] = 1;
            }
            return keep_marked();
        }
        case Do::force:
            return;
        case Do::temperature:
            return temperature(step.amount);
        case Do::top_k: {
            const size_t k = std::max(step.k, step.keep);
            if (k >= n) return;
            const float least = kth(k);
            return keep([&](size_t i) { return scores[i] >= least; });
        }
        case Do::top_p:
            return top_p(step.amount, step.keep);
        case Do::min_p:
            return min_p(step.amount, step.keep);
        case Do::typical:
            return typical(step.amount, step.keep);
        case Do::epsilon:
            return at_least_likely(step.amount, step.keep);
        case Do::eta: {
            log_probabilities();
            const double falling = std::sqrt(step.amount) * natural_exp(-entropy());
            return at_least_likely(std::min(step.amount, falling), step.keep);
        }
        case Do::top_h:
            return top_h(step.amount, step.k);
        case Do::top_n_sigma:
            return top_n_sigma(step.amount);
        case Do::xtc:
            return xtc(step);
        case Do::normalise:
            log_probabilities();
            for (size_t i = 0; i < n; ++i) scores[i] = static_cast<float>(work.logs[i]);
            return keep([&](size_t i) { return scores[i] > kNothing; });
    }
}

}  // namespace decodestep::DECODESTEP_ISA
