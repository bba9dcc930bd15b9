// A row of logits and a list of its tokens that may survive, found by passes over the row and ranked only where the
// order matters. The lists differ from those of decode_step/candidate_list.h: Ascend specifies the treatment of NaN and
// -inf, the order in which tokens are counted, and the rounding of sums.
#pragma once

#include <algorithm>
#include <optional>

#include "sampling/row/each_row.h"
#include "sampling/row/keep_entries.h"
#include "sampling/row/logits.h"
#include "sampling/row/ranking.h"
#include "sampling/row/threshold.h"
#include "sampling/row/workspace.h"
#include "sampling/top_k_top_p_sample/softmax.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr size_t kMostIds = size_t{1} << 20;  // of a vocabulary

template <LogitType type>
class Survivors {
  public:
    Survivors(Logits<type> logits, Workspace& work)
        : logits(logits), work(work), ids(work.ids.get()), inputs(work.scores.get()), values(work.selection.get()) {}

    const Logits<type> logits;
    Workspace& work;
    int32_t* const ids;
    float* const inputs;  // NaN stays NaN
    float* const values;  // after one of the methods that find them
    size_t n = 0;
    float max_input = kMinusInfinity;  // after `sweep`

    // The id at a place of the list; 0 where that is empty, as no pass leaves it unless another thread changes the
    // logits meanwhile.
    int32_t id_at(size_t place) const { return place < n ? ids[place] : 0; }

    // A logit as float32, NaN too.
    float input(size_t id) const {
        float lanes[kLanes];
        store(lanes, logits.load_last(id, 1));
        return lanes[0];
    }

    // Finds the largest logit of every group, which the methods below need that say so.
    void sweep() {
        groups_.emplace(logits.group_maxima(work));
        max_input = groups_->largest();
    }

    // After `sweep`: lists the tokens >= threshold, of -inf all above that, ascending by id. few: whether most vectors
    // hold none.
    void list_from(float threshold, bool few = true) { n = logits.list_from(threshold, *groups_, few, ids, inputs); }

    // After `sweep`: a threshold that `count` tokens reach, and few more; -inf where the groups do not tell.
    float reached_by(size_t count) const {
        if (max_input == kMinusInfinity) return kMinusInfinity;
        return threshold_reached_by(count, spare_tokens(count), max_input,
                                    [&](float t) { return groups_->count_at_least(t); });
    }

    // After `sweep`: lists the highest tokens until their values sum to more than `needed` units, or all above -inf if
    // those sum to less. The first guess lists about `first` tokens.
    void list_mass(const SoftmaxWeights& weights, double needed, size_t first) {
        float t = reached_by(first), too_high = max_input;
        for (double further = 0.5;; further *= 2) {
            list_from(t, further < 2);
            if (t == kMinusInfinity || mass_from(t, weights) > needed) break;
            too_high = t;
            t = lowered(t, further, weights);
        }
        // The caller sorts, which costs more than these passes over a list that is much too long.
        if (n <= 256 || t == kMinusInfinity) return;
        for (int i = 0; i < 5; ++i) {
            const float middle = t + (too_high - t) / 2;
            (mass_from(middle, weights) > needed ? t : too_high) = middle;
        }
        keep_if([&](size_t i) { return inputs[i] >= t; });
    }

    template <class Kept>
    void keep_if(Kept&& kept) {
        n = keep_entries(n, kept, ids, inputs, values);
    }

    // Puts the `count` largest of a list that is ascending by id in descending order and drops the others. Among equals
    // the lower id goes first, or the higher one.
    void rank(size_t count, bool higher_id_first = false) {
        uint64_t* keys = work.keys.get();
        for (size_t i = 0; i < n; ++i) {
            const size_t from = higher_id_first ? n - 1 - i : i, id = static_cast<size_t>(ids[from]);
            keys[i] = descending_key(inputs[from]) | (higher_id_first ? kMostIds - id : id);
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
            const auto id = static_cast<size_t>(keys[i] & (2 * kMostIds - 1));
            ids[i] = static_cast<int32_t>(higher_id_first ? kMostIds - id : id);
            inputs[i] = from_ordered(~static_cast<uint32_t>(keys[i] >> 32));
            if (inputs[i] == 0.0f) inputs[i] = input(static_cast<size_t>(ids[i]));  // -0 has the key of 0
        }
    }

    // Appends to a list of all tokens above -inf those at -inf, then NaN, both ascending by id, up to `count` tokens.
    void append_rest(size_t count) {
        for (const bool nan : {false, true})
            for (size_t id = 0; id < logits.vocab && n < count; ++id) {
                const float x = input(id);
                if (nan ? x == x : x != kMinusInfinity) continue;
                ids[n] = static_cast<int32_t>(id);
                inputs[n++] = x;
            }
    }

    // Lists the whole row, ascending by id.
    void list_all() {
        n = logits.vocab;
        for (size_t block = 0; block < logits.blocks(); ++block)
            logits.each_vector(block, [&](f32x16 x, size_t i) { store(inputs + i, x); });
        for (size_t i = 0; i < n; ++i) ids[i] = static_cast<int32_t>(i);
    }

    static Mask lanes_of(size_t i, size_t n) { return i + kLanes <= n ? kAllLanes : (1u << (n - i)) - 1; }

    void find_values(const SoftmaxWeights& weights) {
        for (size_t i = 0; i < n; i += kLanes) store(values + i, weights.values_of(load(inputs + i)));
    }

    // values = softmax(x[0 : n]); the partial sum of a term goes by its place in the list.
    void softmax_of(const float* x) {
        float top = kMinusInfinity;
        for (size_t i = 0; i < n; ++i) top = x[i] > top ? x[i] : top;
        SoftmaxWeights weights = SoftmaxWeights::softmax(top);
        LaneSums sums;
        for (size_t i = 0; i < n; i += kLanes) sums.add(select(lanes_of(i, n), weights.of(load(x + i))));
        weights.divide_by(sums);
        for (size_t i = 0; i < n; i += kLanes) store(values + i, weights.values_of(load(x + i)));
    }

    // The softmax of a row whose unlisted tokens are -inf; the partial sum of a term goes by its id.
    SoftmaxWeights softmax_of_listed_ids() const {
        SoftmaxWeights weights = SoftmaxWeights::softmax(max_input);
        float row[kLanes], lanes[kLanes];
        LaneSums sums;
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

    // After `sweep`: the softmax of the row.
    SoftmaxWeights softmax_of_row() const {
        SoftmaxWeights weights = SoftmaxWeights::softmax(max_input);
        weights.divide_by(sum_of_row([&](f32x16 x) { return weights.of(x); }));
        return weights;
    }

    double mass_of_row(const SoftmaxWeights& weights) const {
        return sum_of_row([&](f32x16 x) { return units(weights.values_of(x)); }).total();
    }

    // The sum, in units, of the listed values whose inputs reach a threshold.
    double mass_from(float t, const SoftmaxWeights& weights) const {
        LaneSums sums;
        for (size_t i = 0; i < n; i += kLanes) {
            const f32x16 x = load(inputs + i);
            const Mask lanes = at_least(x, broadcast(t)) & lanes_of(i, n);
            sums.add(select(lanes, units(weights.values_of(x))));
        }
        return sums.total();
    }

  private:
    std::optional<GroupMaxima> groups_;  // after `sweep`

    template <class Term>
    LaneSums sum_of_row(Term&& term) const {
        LaneSums sums;
        for (size_t block = 0; block < logits.blocks(); ++block) {
            LaneSums inner = sums;  // stays in registers
            logits.each_vector(block, [&](f32x16 x, size_t) { inner.add(term(x)); });
            sums = inner;
        }
        return sums;
    }

    // A softmax falls by e for every 1 that its logit is lower; inputs that are probabilities are lowered by factors.
    static float lowered(float t, double further, const SoftmaxWeights& weights) {
        const double below = weights.are_raw() ? t * std::exp2(-further) : t - further;
        const auto narrow = static_cast<float>(below);
        return narrow < t && !(weights.are_raw() && narrow < 1e-30f) ? narrow : kMinusInfinity;
    }

    // A type of this namespace: every instruction set must instantiate a std::sort of its own, which the linker does
    // not merge with the others.
    static constexpr auto before = [](uint64_t a, uint64_t b) { return a < b; };
};

// Calls body(survivors of row b, b) for every row, rows in parallel.
template <class Args, class Body>
void each_survivors(const Args& args, Body&& body) {
    each_row(args, [&](const auto& logits, size_t b, Workspace& work) {
        Survivors row(logits, work);
        body(row, b);
    });
}

}  // namespace decodestep::DECODESTEP_BUILD
