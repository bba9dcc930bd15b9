// The pass over a row that top-p needs: group_max, the mass of the whole row, and the tokens from a threshold on.
#pragma once

#include "candidates.h"
#include "logits.h"
#include "overlay.h"

namespace decodestep::DECODESTEP_ISA {

// 2^(scale * x + offset): the weight of a logit, relative to that of some other.
struct Weight {
    f32x16 scale, offset;

    DECODESTEP_INLINE f32x16 operator()(f32x16 x) const { return exp2(fma(x, scale, offset)); }
};

template <Real real>
class MassSweep {
  public:
    MassSweep(const Logits<real>& logits, const Weight& weight, bool patched)
        : logits_(logits), weight_(weight), patched_(patched) {}

    // Lists the ids of the tokens whose logits are at least the threshold, ascending, but those in the overlay. Returns
    // the sum of the weights. Now and then, likely(an estimate of that sum) may raise a finite threshold: what the list
    // has of lower logits it has from before.
    template <class Likely>
    double run(Workspace& work, Candidates& list, float threshold, Likely&& likely) {
        set_threshold(threshold);
        list.n = 0;
        double mass = 0, heaviest = 0;
        size_t look = kFirstLook;
        for (size_t block = 0; block < logits_.blocks();) {
            float sums = (block + 1) * kBlock <= logits_.vocab ? full(block, work, list.ids, list.n)
                                                               : partial(block, work, list.ids, list.n);
            if (sums != sums) sums = without_nan(block);
            mass += static_cast<double>(sums);
            heaviest = std::max(heaviest, static_cast<double>(sums));
            if (++block == look && std::isfinite(threshold_)) {
                look *= 2;
                // One block may hold the tokens that outweigh all others; the rest has no more of them.
                const double others = (mass - heaviest) / static_cast<double>(block - 1);
                set_threshold(
                    std::max(threshold_, likely(mass + others * static_cast<double>(logits_.blocks() - block))));
            }
        }
        return mass;
    }

    float threshold() const { return threshold_; }

  private:
    using Item = typename Logits<real>::Item;
    static constexpr size_t kWord = 64;  // tokens that a word of bits marks
    static constexpr int kAtATime = 4;
    static constexpr size_t kFirstLook = 32;
    static constexpr size_t kAhead = (size_t{1} << 14) / sizeof(Item);

    // Any threshold will do: sixteen bits are compared faster than more.
    void set_threshold(float threshold) {
        threshold_ = std::bit_cast<float>(std::bit_cast<uint32_t>(threshold) & 0xFFFF0000u);
        least_ = broadcast(threshold_);
    }

    float full(size_t block, Workspace& work, int32_t* ids, size_t& listed) const {
        size_t n = listed;
        f32x16 best[4] = {broadcast(kNothing), broadcast(kNothing), broadcast(kNothing), broadcast(kNothing)};
        f32x16 sums[4] = {broadcast(0.0f), broadcast(0.0f), broadcast(0.0f), broadcast(0.0f)};
        uint64_t marks[kBlock / kWord];
        const Item* const p = logits_.data + block * kBlock;
#pragma GCC unroll 2
        for (size_t i = 0; i < kBlock / kWord; ++i) {
            const Item* const word = p + i * kWord;
            for (size_t byte = 0; byte < kWord * sizeof(Item); byte += 64)
                prefetch(reinterpret_cast<const char*>(word + kAhead) + byte);
            f32x16 x[4];
            logits_.load_pair(word, x[0], x[1]);
            logits_.load_pair(word + 2 * kLanes, x[2], x[3]);
#pragma GCC unroll 4
            for (size_t j = 0; j < 4; ++j) {
                best[j] = max(x[j], best[j]);
                sums[j] = sums[j] + weight_(x[j]);
            }
            marks[i] = marked(word);
        }
        if (patched_) {
            for (size_t i = 0; i < kBlock / kWord; ++i) {
                const uint64_t patched = work.marks[block * (kBlock / kWord) + i];
                marks[i] = (marks[i] | patched) ^ patched;
            }
        }
        for (size_t i = 0; i < kBlock / kWord; ++i) n += write(marks[i], block * kBlock + i * kWord, ids + n);
        listed = n;
        store(&work.group_max[block * kLanes], max(max(best[0], best[1]), max(best[2], best[3])));
        return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    }

    float partial(size_t block, Workspace& work, int32_t* ids, size_t& listed) const {
        size_t n = listed;
        f32x16 best = broadcast(kNothing), sums = broadcast(0.0f);
        const f32x16 least = max(least_, broadcast(std::numeric_limits<float>::lowest()));
        logits_.each_vector(block, [&](f32x16 x, size_t i) {
            best = max(x, best);
            sums = sums + weight_(x);
            const uint64_t patched = work.marks[i / kWord] >> (i % kWord);
            n += write(at_least(x, least) & ~patched & kAllLanes, i, ids + n);
        });
        listed = n;
        store(&work.group_max[block * kLanes], best);
        return sum(sums);
    }

    float without_nan(size_t block) const {
        f32x16 sums = broadcast(0.0f);
        logits_.each_vector(block, [&](f32x16 x, size_t) { sums = sums + select(at_least(x, x), weight_(x)); });
        return sum(sums);
    }

    // Bit i stands for token i.
    DECODESTEP_INLINE uint64_t marked(const Item* p) const {
#if defined(__AVX512F__)
        if constexpr (real == Real::bf16) return marked_halves(p) | marked_halves(p + 32) << 32;
#endif
        uint64_t word = 0;
        for (size_t j = 0; j < 4; ++j)
            word |= static_cast<uint64_t>(at_least(Logits<real>::widen(p + j * kLanes), least_)) << j * kLanes;
        return word;
    }

#if defined(__AVX512F__)
    // Floats are ordered as integers, those of either sign in their own direction; NaN may be marked.
    DECODESTEP_INLINE uint64_t marked_halves(const uint16_t* p) const {
        const auto bits = std::bit_cast<uint32_t>(threshold_) >> 16;
        const __m512i x = _mm512_loadu_si512(p), least = _mm512_set1_epi16(static_cast<short>(bits));
        return bits & 0x8000 ? _mm512_cmple_epu16_mask(x, least) : _mm512_cmpge_epi16_mask(x, least);
    }
#endif

    // Writes the tokens that a word marks, and more behind them: four at a time whether there are as many or not, for
    // that number is hard to foretell. Returns their number.
    DECODESTEP_INLINE static size_t write(uint64_t word, size_t first, int32_t* ids) {
        stay_scalar(word);
        const auto count = static_cast<size_t>(std::popcount(word));
        for (const int32_t* const end = ids + count; ids < end;)
            for (int i = 0; i < kAtATime; ++i) {
                const int bit = std::countr_zero(word | uint64_t{1} << 63);  // never zero, so no branch
                *ids++ = static_cast<int32_t>(first) + bit;
                word &= word - 1;
                stay_scalar(word);
            }
        return count;
    }

    const Logits<real>& logits_;
    const Weight weight_;
    const bool patched_;
    float threshold_ = kNothing;
    f32x16 least_{};
};

}  // namespace decodestep::DECODESTEP_ISA
