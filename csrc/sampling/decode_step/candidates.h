// The exact form of a row: its candidates, and every step as reference.py has it, operation for operation.
#pragma once

#include "sampling/decode_step/candidate_list.h"

namespace decodestep::DECODESTEP_ISA {

struct Candidates : CandidateList {
    uint32_t position;

    void run(const Step& step);

  private:
    template <Do what>
    void patch(const Step& step);
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
template <Do what>
DECODESTEP_INLINE float patched(const Step& step, size_t which, float s) {
    const auto factor = static_cast<float>(step.amount);
    if constexpr (what == Do::penalise) return s < 0.0f ? s * factor : s / factor;
    if constexpr (what == Do::add) return s + step.values[which];
    if constexpr (what == Do::lift) return std::isfinite(s) ? s + std::fabs(s) * factor : s;
    return kNothing;  // ban
}

template <Do what>
void Candidates::patch(const Step& step) {
    for (size_t i = 0; i < step.count; ++i) {
        const size_t place = place_of(ids, n, step.ids[i]);
        if (place < n) scores[place] = patched<what>(step, i, scores[place]);
    }
    keep([&](size_t i) { return scores[i] > kNothing; });
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
    double before = 0;
    size_t count = 0;
    in_order_of_scores([&](uint32_t place) {
        if (before >= target && count >= keep_best) return false;
        work.kept[place] = 1;
        ++count;
        before += work.weights[place];
        return true;
    });
    keep_marked();
}

inline void Candidates::min_p(double p, size_t keep_best) {
    find_weights();
    if (keep_best <= 1) return keep([&](size_t i) { return work.weights[i] >= p; });  // the largest weighs 1
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
    double sum = 0;
    in_order_of_scores([&](uint32_t place) {
        sum += -work.terms[place];
        return true;
    });
    const double limit = share * sum;
    size_t count = 0, within = 0;
    sum = 0;
    in_order_of_scores([&](uint32_t place) {
        const double term = -work.terms[place];  // 0 where the probability is: such a token is never within
        sum += term;
        within += count++ == 0 || (term > 0 && sum <= limit);
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
            return patch<Do::penalise>(step);
        case Do::add:
            return patch<Do::add>(step);
        case Do::lift:
            return patch<Do::lift>(step);
        case Do::ban:
            return patch<Do::ban>(step);
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
