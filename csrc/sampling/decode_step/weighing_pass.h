// The pass over a row for top-p: computes the mass of the whole row, and either lists the tokens above a threshold or
// finds the largest logit of every group.
#pragma once

#include "sampling/decode_step/list_steps.h"
#include "sampling/decode_step/overlay.h"
#include "sampling/row/logits.h"
#include "simd/exp.h"

namespace decodestep::DECODESTEP_BUILD {

// The weight of a logit relative to that of a reference logit: 2^(scale * x + offset).
struct LogitWeight {
    f32x16 scale, offset;

    DECODESTEP_INLINE f32x16 operator()(f32x16 x) const { return exp2(fma(x, scale, offset)); }
};

template <LogitType type>
class WeighingPass {
  public:
    // `patched`: whether any tokens are in the overlay. Those are not listed, and weighed by their unpatched logits.
    WeighingPass(const Logits<type>& logits, const LogitWeight& weight, Candidates& list, bool patched)
        : logits_(logits), weight_(weight), list_(list), patched_(patched) {}

    struct WeighedList {
        double mass;          // the sum of the row's weights
        float complete_from;  // the list holds every token whose logit is at least that, and maybe lower ones
    };

    // Weighs the row and lists tokens from a threshold on, ascending by id. After 64, 128, 256 ... blocks a finite
    // threshold may rise to likely(estimated mass of the row): what has been listed stays, what is listed from then on
    // reaches the new threshold. So the list is complete from the last one on.
    template <class Likely>
    WeighedList weigh_and_list(float threshold, Likely&& likely) {
        set_threshold(threshold);
        list_.n = 0;
        double mass = 0, heaviest = 0;
        size_t next_estimate = kFirstEstimate;
        for (size_t block = 0; block < logits_.blocks();) {
            const double sum = pass<true, true>(block);
            mass += sum;
            heaviest = std::max(heaviest, sum);
            if (++block == next_estimate && std::isfinite(threshold_)) {
                next_estimate *= 2;
                // The heaviest block may hold the few tokens that outweigh all others: the rest is like the others.
                const double others = (mass - heaviest) / static_cast<double>(block - 1);
                const double estimate = mass + others * static_cast<double>(logits_.blocks() - block);
                set_threshold(std::max(threshold_, likely(estimate)));
            }
        }
        return {mass, threshold_};
    }

    struct WeighedGroups {
        double mass;
        GroupMaxima maxima;
    };

    WeighedGroups weigh_groups() {
        double mass = 0;
        const GroupMaxima maxima(list_.work, logits_.blocks(), [&](size_t block, float* out) DECODESTEP_INLINE_LAMBDA {
            mass += pass<true, false>(block, out);
        });
        return {mass, maxima};
    }

    // Lists tokens from a threshold on, ascending by id. Returns the logit from which on the list is complete, and
    // below which it holds none: the threshold, rounded.
    float list_from(float threshold) {
        set_threshold(threshold);
        list_.n = 0;
        for (size_t block = 0; block < logits_.blocks(); ++block) pass<false, true>(block);
        return threshold_;
    }

  private:
    using Item = typename Logits<type>::Item;
    static constexpr size_t kWord = 64;           // tokens that a word of bits marks
    static constexpr size_t kFirstEstimate = 64;  // blocks
    static constexpr size_t kPrefetchDistance = (size_t{1} << 14) / sizeof(Item);

    // The threshold is rounded to bfloat16, with which bfloat16 logits are compared faster; callers go by the rounded
    // one.
    void set_threshold(float threshold) {
        threshold_ = std::bit_cast<float>(std::bit_cast<uint32_t>(threshold) & 0xFFFF0000u);
        least_ = broadcast(threshold_);
    }

    // One block, listed or its maxima written; returns the sum of its weights if they are wanted.
    template <bool weighed, bool listed>
    DECODESTEP_INLINE double pass(size_t block, float* maxima = nullptr) {
        const float sums = (block + 1) * kLogitsBlock <= logits_.vocab ? full<weighed, listed>(block, maxima)
                                                                       : partial<weighed, listed>(block, maxima);
        return static_cast<double>(sums == sums ? sums : without_nan(block));
    }

    template <bool weighed, bool listed>
    DECODESTEP_INLINE float full(size_t block, float* maxima) {
        f32x16 best[4] = {broadcast(kMinusInfinity), broadcast(kMinusInfinity), broadcast(kMinusInfinity),
                          broadcast(kMinusInfinity)};
        f32x16 sums[4] = {broadcast(0.0f), broadcast(0.0f), broadcast(0.0f), broadcast(0.0f)};
        uint64_t marks[kLogitsBlock / kWord];
        const Item* const p = logits_.data + block * kLogitsBlock;
#pragma GCC unroll 2
        for (size_t i = 0; i < kLogitsBlock / kWord; ++i) {
            const Item* const word = p + i * kWord;
            if constexpr (weighed) {
                prefetch(word + kPrefetchDistance, kWord * sizeof(Item));
                f32x16 x[4];
                logits_.load_pair(word, x[0], x[1]);
                logits_.load_pair(word + 2 * kLanes, x[2], x[3]);
#pragma GCC unroll 4
                for (size_t j = 0; j < 4; ++j) {
                    if constexpr (!listed) best[j] = max(x[j], best[j]);
                    sums[j] = sums[j] + weight_(x[j]);
                }
            }
            if constexpr (listed) marks[i] = marked(word);
        }
        if constexpr (listed) {
            write(marks, block);
        } else {
            store(maxima, max(max(best[0], best[1]), max(best[2], best[3])));
        }
        return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    }

    template <bool weighed, bool listed>
    float partial(size_t block, float* maxima) {
        f32x16 best = broadcast(kMinusInfinity), sums = broadcast(0.0f);
        uint64_t marks[kLogitsBlock / kWord] = {};
        const f32x16 least = max(least_, broadcast(std::numeric_limits<float>::lowest()));
        logits_.each_vector(block, [&](f32x16 x, size_t i) {
            best = max(x, best);
            sums = sums + weight_(x);
            marks[i % kLogitsBlock / kWord] |= static_cast<uint64_t>(at_least(x, least)) << i % kWord;
        });
        if constexpr (listed)
            write(marks, block);
        else
            store(maxima, best);
        return weighed ? sum(sums) : 0;
    }

    // The sum of a block's weights, where NaN has none.
    float without_nan(size_t block) const {
        f32x16 sums = broadcast(0.0f);
        logits_.each_vector(block, [&](f32x16 x, size_t) { sums = sums + select(at_least(x, x), weight_(x)); });
        return sum(sums);
    }

    // Bit i: whether token i of 64 reaches the threshold. Of bfloat16, NaN may be marked too; it is listed as -inf.
    DECODESTEP_INLINE uint64_t marked(const Item* p) const {
        if constexpr (type == LogitType::bf16)
            return at_least_bf16(p, threshold_) | uint64_t{at_least_bf16(p + 32, threshold_)} << 32;
        uint64_t word = 0;
        for (size_t j = 0; j < 4; ++j)
            word |= static_cast<uint64_t>(at_least(Logits<type>::widen(p + j * kLanes), least_)) << j * kLanes;
        return word;
    }

    // Lists what a block's bits mark, unless it is patched; the block's logits are still in the cache.
    DECODESTEP_INLINE void write(uint64_t (&marks)[kLogitsBlock / kWord], size_t block) {
        if (patched_) {
            for (size_t i = 0; i < kLogitsBlock / kWord; ++i) {
                const uint64_t patched = list_.work.marks[block * (kLogitsBlock / kWord) + i];
                marks[i] = (marks[i] | patched) ^ patched;
            }
        }
        const Logits<type> logits = logits_;
        int32_t* const ids = list_.ids;
        float* const scores = list_.scores;
        size_t n = list_.n;
        for (size_t i = 0; i < kLogitsBlock / kWord; ++i)
            n += logits.list_marked(marks[i], block * kLogitsBlock + i * kWord, ids + n, scores + n);
        list_.n = n;
    }

    const Logits<type>& logits_;
    const LogitWeight weight_;
    Candidates& list_;
    const bool patched_;
    float threshold_ = kMinusInfinity;
    f32x16 least_{};
};

}  // namespace decodestep::DECODESTEP_BUILD
