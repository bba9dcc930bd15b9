#include "sampling/decode_step/list_steps.h"

#include "core/exact_math.h"
#include "simd/noise.h"

namespace decodestep::DECODESTEP_BUILD {

template <StepKind kind>
void Candidates::patch(const Step& step) {
    for (size_t i = 0; i < step.count; ++i) {
        const size_t index = index_of(ids, n, step.ids[i]);
        if (index < n) scores[index] = patched<kind>(step, i, scores[index]);
    }
    keep_if([&](size_t i) { return scores[i] > kMinusInfinity; });
}

void Candidates::allow_bits(const Step& step) {
    keep_if([&](size_t i) { return step.bits[ids[i] / 32] >> (ids[i] % 32) & 1; });
}

void Candidates::allow(const Step& step) {
    unmark_all();
    for (size_t i = 0; i < step.count; ++i) {
        const size_t index = index_of(ids, n, step.ids[i]);
        if (index < n) work.kept[index] = 1;
    }
    keep_marked();
}

void Candidates::force(const Step& step) {
    n = 0;
    for (size_t i = 0; i < step.count; ++i) ids[n++] = static_cast<int32_t>(step.ids[i]);
    std::sort(ids, ids + n, [](int32_t a, int32_t b) { return a < b; });
    n = static_cast<size_t>(std::unique(ids, ids + n, [](int32_t a, int32_t b) { return a == b; }) - ids);
    std::fill(scores, scores + n, 0.0f);
}

void Candidates::temperature(double temperature) {
    const float largest = max_score(), divisor = static_cast<float>(temperature);
    if (std::isinf(largest)) return keep_if([&](size_t i) { return scores[i] == largest; });
    if (std::isfinite(largest / divisor)) {
        for (size_t i = 0; i < n; ++i) scores[i] /= divisor;
    } else {
        for (size_t i = 0; i < n; ++i)
            scores[i] =
                static_cast<float>((static_cast<double>(scores[i]) - static_cast<double>(largest)) / temperature);
    }
    keep_if([&](size_t i) { return scores[i] > kMinusInfinity; });
}

void Candidates::top_k(size_t k) {
    if (k >= n) return;
    const float least = kth_score(k);
    keep_if([&](size_t i) { return scores[i] >= least; });
}

void Candidates::top_p(double p, size_t min_keep) {
    if (p == 1) return;
    const Weights weights = find_weights();
    const double target = p * mass_of(weights);
    unmark_all();
    double above = 0;  // the mass that ranks before the token
    size_t count = 0;
    visit_by_score([&](uint32_t index) {
        if (above >= target && count >= min_keep) return false;
        work.kept[index] = 1;
        ++count;
        above += weights.of[index];
        return true;
    });
    keep_marked();
}

void Candidates::min_p(double p, size_t min_keep) {
    const Weights weights = find_weights();
    if (min_keep <= 1) return keep_if([&](size_t i) { return weights.of[i] >= p; });  // the largest has weight 1
    mark_highest(min_keep);
    keep_if([&](size_t i) { return weights.of[i] >= p || work.kept[i] != 0; });
}

void Candidates::typical(double mass, size_t min_keep) {
    const LogProbabilities logs = find_log_probabilities();
    const Entropy entropy = find_entropy(logs);
    const auto distance = [&](size_t i) { return std::fabs(-logs.of[i] - entropy.value); };
    unmark_all();
    set_sort_keys(distance);
    double sum = 0, farthest = 0;
    size_t count = 0;
    visit_by_key([&](uint32_t index) {
        const bool reached = count > 0 && sum >= mass;
        if (reached && count >= min_keep) return false;
        if (count++ < min_keep) work.kept[index] = 1;
        if (reached) return true;
        farthest = distance(index);
        sum += entropy.shares[index];
        return true;
    });
    keep_if([&](size_t i) { return distance(i) <= farthest || work.kept[i] != 0; });
}

void Candidates::epsilon(double least, size_t min_keep) {
    const Weights weights = find_weights();
    const double mass = mass_of(weights);
    const float best = kth_score(std::min(min_keep, n));
    keep_if([&](size_t i) { return weights.of[i] / mass >= least || scores[i] >= best; });
}

void Candidates::eta(double largest, size_t min_keep) {
    const double entropy = find_entropy(find_log_probabilities()).value;
    epsilon(std::min(largest, std::sqrt(largest) * natural_exp(-entropy)), min_keep);
}

void Candidates::top_h(double share, size_t count) {
    mark_highest(count);
    keep_marked();
    const Entropy entropy = find_entropy(find_log_probabilities());
    double sum = 0;
    visit_by_score([&](uint32_t index) {
        sum += -entropy.terms[index];
        return true;
    });
    const double limit = share * sum;
    size_t visited = 0, within = 0;
    sum = 0;
    visit_by_score([&](uint32_t index) {
        const double term = -entropy.terms[index];  // 0 where the probability is 0: such a token is never within
        sum += term;
        within += visited++ == 0 || (term > 0 && sum <= limit);
        return true;
    });
    mark_highest(within);
    keep_marked();
}

void Candidates::top_n_sigma(double deviations) {
    const float largest = max_score();
    if (std::isinf(largest)) return keep_if([&](size_t i) { return scores[i] == largest; });
    double* const values = work.weights.get();
    for (size_t i = 0; i < n; ++i) values[i] = scores[i];
    const double mean = total(values) / static_cast<double>(n);
    for (size_t i = 0; i < n; ++i) {
        const double apart = static_cast<double>(scores[i]) - mean;
        values[i] = apart * apart;
    }
    const double least = static_cast<double>(largest) - deviations * std::sqrt(total(values) / static_cast<double>(n));
    keep_if([&](size_t i) { return static_cast<double>(scores[i]) >= least; });
}

void Candidates::xtc(const Step& step) {
    constexpr uint32_t coin = 0xFFFFFFFF;  // XTC_COIN of src/decodestep/random/reference.py
    const uint32_t bits = decodestep::noise_bits(noise_state(step.seed, position), coin);
    if (static_cast<double>(uniform(bits)) >= step.probability) return;
    const Weights weights = find_weights();
    const double mass = mass_of(weights);
    size_t count = 0, least = 0;
    for (size_t i = 0; i < n; ++i) {
        const bool likely = weights.of[i] / mass >= step.amount;
        work.kept[i] = !likely;
        if (likely && (count++ == 0 || scores[i] <= scores[least])) least = i;
    }
    if (count < 2) return;
    work.kept[least] = 1;
    for (size_t i = 0; i < step.count; ++i)
        if (const size_t at = index_of(ids, n, step.ids[i]); at < n) work.kept[at] = 1;
    keep_marked();
}

void Candidates::normalise() {
    const LogProbabilities logs = find_log_probabilities();
    for (size_t i = 0; i < n; ++i) scores[i] = static_cast<float>(logs.of[i]);
    keep_if([&](size_t i) { return scores[i] > kMinusInfinity; });
}

void Candidates::run(const Step& step) {
    if (n == 0 && step.kind != StepKind::force) return;
    switch (step.kind) {
        case StepKind::penalise:
            return patch<StepKind::penalise>(step);
        case StepKind::add:
            return patch<StepKind::add>(step);
        case StepKind::lift:
            return patch<StepKind::lift>(step);
        case StepKind::ban:
            return patch<StepKind::ban>(step);
        case StepKind::allow_bits:
            return allow_bits(step);
        case StepKind::allow:
            return allow(step);
        case StepKind::force:
            return force(step);
        case StepKind::temperature:
            return temperature(step.amount);
        case StepKind::top_k:
            return top_k(std::max(step.k, step.min_keep));
        case StepKind::top_p:
            return top_p(step.amount, step.min_keep);
        case StepKind::min_p:
            return min_p(step.amount, step.min_keep);
        case StepKind::typical:
            return typical(step.amount, step.min_keep);
        case StepKind::epsilon:
            return epsilon(step.amount, step.min_keep);
        case StepKind::eta:
            return eta(step.amount, step.min_keep);
        case StepKind::top_h:
            return top_h(step.amount, step.k);
        case StepKind::top_n_sigma:
            return top_n_sigma(step.amount);
        case StepKind::xtc:
            return xtc(step);
        case StepKind::normalise:
            return normalise();
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
