// A row of logits and the list of its tokens that may survive, found in passes over the row and ranked only where a
// rank is asked for.
#pragma once

#include <algorithm>

#include "sampling/row/each_row.h"
#include "sampling/row/logits.h"
#include "sampling/row/ranking.h"
#include "sampling/row/threshold.h"
#include "sampling/row/workspace.h"
#include "sampling/top_k_top_p_sample/softmax.h"

namespace decodestep::DECODESTEP_ISA {

constexpr size_t kIds = size_t{1} << 20;  // no vocabulary is larger

template <Real real>
class Survivors {
  public:
    Survivors(Logits<real> logits, Workspace& work)
        : logits(logits), work(work), ids(work.ids.get()), inputs(work.scores.get()), values(work.selection.get()) {}

    const Logits<real> logits;
    Workspace& work;
    int32_t* const ids;
    float* const inputs;  // NaN stays NaN
    float* const values;  // where they have been worked out
    size_t n = 0;
    float largest = kNothing;

    // A logit as float32, NaN too.
    float input(size_t id) const {
        float lanes[kLanes];
        store(lanes, logits.load_last(id, 1));
        return lanes[0];
    }

    void sweep() {
        logits.sweep(work);
        f32x16 best = broadcast(kNothing);
        for (size_t block = 0; block < logits.blocks(); ++block) best = max(logits.load_maxima(work, block), best);
        largest = decodestep::DECODESTEP_ISA::largest(best);
    }

    // Behind `sweep`: the tokens >= threshold, ascending by id; all above -inf where it is that.
    void collect(float threshold, bool few = true) {
        few = few && threshold > kNothing;
        n = few ? logits.template collect<true>(work, threshold) : logits.template collect<false>(work, threshold);
    }

    // A threshold that `count` tokens reach, and few more; -inf where the groups can't tell.
    float reached_by(size_t count) const {
        if (largest == kNothing) return kNothing;
        const size_t groups = logits.blocks() * kLanes;
        return threshold_reached_by(count, count / 4 + 4, largest,
                                    [&](float t) { return count_at_least(work.group_max.get(), groups, t); });
    }

    // Behind `sweep`: tokens whose values surely sum to more than `needed` units, about `first` of them at first; all
    // above -inf where these have less.
    void collect_mass(const Weights& weights, double needed, size_t first) {
        float t = reached_by(first), short_of = largest;
        for (double further = 0.5;; further *= 2) {
            collect(t, further < 2);
            if (t == kNothing || mass_from(t, weights) > needed) break;
            short_of = t;
            t = lower(t, further, weights);
        }
        // Sorting is what costs: a list that is much too long is cut before.
        if (n <= 256 || t == kNothing) return;
        for (int i = 0; i < 5; ++i) {
            const float middle = t + (short_of - t) / 2;
            (mass_from(middle, weights) > needed ? t : short_of) = middle;
        }
        keep([&](size_t i) { return inputs[i] >= t; });
    }

    template <class Kept>
    void keep(Kept&& kept) {
        size_t left = 0;
        for (size_t i = 0; i < n; ++i) {
            const bool stays = kept(i);
            ids[left] = ids[i];
            inputs[left] = inputs[i];
            values[left] = values[i];
            left += stays;
        }
        n = left;
    }

    // Puts the `count` largest of an ascending list in descending order and drops the others; of equals the lower id
    // goes first, or the higher one.
    void rank(size_t count, bool higher_id_first = false) {
        uint64_t* keys = work.keys.get();
        for (size_t i = 0; i < n; ++i) {
            const size_t from = higher_id_first ? n - 1 - i : i, id = static_cast<size_t>(ids[from]);
            keys[i] = descending_key(inputs[from]) | (higher_id_first ? kIds - id : id);
        }
        if (n < 1024 || count < n / 4) {
            if (count < n) std::nth_element(keys, keys + count, keys + n, before);
            n = std::min(n, count);
            std::sort(keys, keys + n, before);
        } else {
            keys = sorted_by_upper_half(keys, work.spare_keys.get(), n);
            n = std::min(n, count);
        }
        for (size_t i = 0; i < n; ++i) {
            const auto id = static_cast<size_t>(keys[i] & (2 * kIds - 1));
            ids[i] = static_cast<int32_t>(higher_id_first ? kIds - id : id);
            inputs[i] = from_ordered(~static_cast<uint32_t>(keys[i] >> 32));
        }
    }

    // Fills a list of all tokens above -inf up with those at -inf, then with NaN, each in the order of their ids.
    void append_rest(size_t count) {
        for (const bool nan : {false, true})
            for (size_t id = 0; id < logits.vocab && n < count; ++id) {
                const float x = input(id);
                if (nan ? x == x : x != kNothing) continue;
                ids[n] = static_cast<int32_t>(id);
                inputs[n++] = x;
            }
    }

    // The whole row, in the order of the ids.
    void list_all() {
        n = logits.vocab;
        for (size_t block = 0; block < logits.blocks(); ++block)
            logits.each_vector(block, [&](f32x16 x, size_t i) { store(inputs + i, x); });
        for (size_t i = 0; i < n; ++i) ids[i] = static_cast<int32_t>(i);
    }

    static Mask lanes_of(size_t i, size_t n) { return i + kLanes <= n ? kAllLanes : (1u << (n - i)) - 1; }

    void find_values(const Weights& weights) {
        for (size_t i = 0; i < n; i += kLanes) store(values + i, weights.values_of(load(inputs + i)));
    }

    // values = softmax(x[0 : n]), a sum's terms being placed as they stand in the list.
    void softmax_of(const float* x) {
        float top = kNothing;
        for (size_t i = 0; i < n; ++i) top = x[i] > top ? x[i] : top;
        Weights weights = Weights::softmax(top);
        Sums sums;
        for (size_t i = 0; i < n; i += kLanes) sums.add(select(lanes_of(i, n), weights.of(load(x + i))));
        weights.divide_by(sums);
        for (size_t i = 0; i < n; i += kLanes) store(values + i, weights.values_of(load(x + i)));
    }

    // The softmax of a row whose other tokens are -inf: the terms are placed by their ids.
    Weights softmax_of_listed_ids() const {
        Weights weights = Weights::softmax(largest);
        float row[kLanes], lanes[kLanes];
        Sums sums;
        std::fill_n(row, kLanes, 0.0f);
        for (size_t i = 0, first = 0; i < n; ++i) {
            if (i % kLanes == 0) store(lanes, weights.of(load(inputs + i)));
            const auto id = static_cast<size_t>(ids[i]);
            if (id / kLanes != first) {
                sums.add(load(row));
                std::fill_n(row, kLanes, 0.0f);
                first = id / kLanes;
            }
            row[id % kLanes] = lanes[i % kLanes];
        }
        sums.add(load(row));
        weights.divide_by(sums);
        return weights;
    }

    // The softmax of the row, behind `sweep`.
    Weights softmax_of_row() const {
        Weights weights = Weights::softmax(largest);
        weights.divide_by(sum_of_row([&](f32x16 x) { return weights.of(x); }));
        return weights;
    }

    double mass_of_row(const Weights& weights) const {
        return sum_of_row([&](f32x16 x) { return units(weights.values_of(x)); }).total();
    }

    // The units of the listed values from a threshold on.
    double mass_from(float t, const Weights& weights) const {
        Sums sums;
        for (size_t i = 0; i < n; i += kLanes) {
            const f32x16 x = load(inputs + i);
            const Mask lanes = at_least(x, broadcast(t)) & lanes_of(i, n);
            sums.add(select(lanes, units(weights.values_of(x))));
        }
        return sums.total();
    }

  private:
    template <class Term>
    Sums sum_of_row(Term&& term) const {
        Sums sums;
        for (size_t block = 0; block < logits.blocks(); ++block) {
            Sums inner = sums;  // stays in registers
            logits.each_vector(block, [&](f32x16 x, size_t) { inner.add(term(x)); });
            sums = inner;
        }
        return sums;
    }

    // Softmax falls with the difference of logits, and what is a probability already with the quotient.
    static float lower(float t, double further, const Weights& weights) {
        const double below = weights.are_raw() ? t * std::exp2(-further) : t - further;
        const auto narrow = static_cast<float>(below);
        return narrow < t && !(weights.are_raw() && narrow < 1e-30f) ? narrow : kNothing;
    }

    // A type of this build, so that each instruction set has a sort of its own.
    static constexpr auto before = [](uint64_t a, uint64_t b) { return a < b; };
};

// Calls body(survivors, b) for every row b, rows in parallel.
template <class Args, class Body>
void for_each_row(const Args& args, Body&& body) {
    each_row(args, [&](const auto& logits, size_t b, Workspace& work) {
        Survivors row(logits, work);
        body(row, b);
    });
}

}  // namespace decodestep::DECODESTEP_ISA
