// Estimates from a few blocks of a row: its mass, and the logit above which most of the mass lies.
#pragma once

#include "sampling/decode_step/weighing_pass.h"
#include "sampling/row/threshold.h"

namespace decodestep::DECODESTEP_BUILD {

template <LogitType type>
class MassEstimate {
  public:
    // scale: converts a difference of logits to an exponent of two.
    MassEstimate(const Logits<type>& logits, float scale) : scale_(scale) {
        const size_t sampled = std::min<size_t>(logits.blocks(), kBlocks), stride = logits.blocks() / sampled;
        const auto block = [&](size_t i) { return stride / 2 + i * stride; };
        f32x16 best = broadcast(kMinusInfinity);
        for (size_t i = 0; i < sampled; ++i) logits.prefetch_block(block(i));
        for (size_t i = 0; i < sampled; ++i)
            logits.each_vector(block(i), [&](f32x16 x, size_t) { best = max(x, best); });
        max_logit_ = largest(best);
        if (!std::isfinite(max_logit_)) return;
        const LogitWeight weight{broadcast(scale), broadcast(-scale * max_logit_)};
        double mass = 0, heaviest = 0;
        size_t seen = 0;
        for (size_t i = 0; i < sampled; ++i) {
            f32x16 sums = broadcast(0.0f);
            logits.each_vector(block(i), [&](f32x16 x, size_t) {
                const f32x16 w = weight(x);
                sums = sums + w;
                seen += kLanes;
                if (i % 2 == 0) {  // half of the blocks are enough for the distribution
                    store(weights_ + count_, w);
                    count_ += kLanes;
                }
            });
            const auto block_mass = static_cast<double>(sum(sums));
            mass += block_mass;
            heaviest = std::max(heaviest, block_mass);
        }
        // The heaviest block may hold the few tokens that outweigh all others: the rest of the row is like the others.
        const double others = sampled > 1 ? (mass - heaviest) / static_cast<double>(sampled - 1) : mass;
        mass_ = others * static_cast<double>(logits.blocks());
        share_ = static_cast<double>(count_ * sampled) / static_cast<double>(seen * logits.blocks());
    }

    float max_logit() const { return max_logit_; }  // of the sample; if it is not finite, the rest is meaningless
    double mass() const { return mass_; }           // estimate for the row, relative to the weight of max_logit

    // Approximately the logit below which the tokens have the mass `tail`. Calls meanwhile(0), meanwhile(1), ...
    // between the kHalvings steps of the search, for prefetches.
    template <class Meanwhile>
    float logit_above_tail(double tail, Meanwhile&& meanwhile) const {
        const double wanted = tail * share_;
        uint32_t low = ordered(0x1p-64f), high = ordered(1.0f);
        for (size_t i = 0; i < kHalvings; ++i) {
            meanwhile(i);
            const uint32_t middle = low + (high - low) / 2;
            (mass_below(from_ordered(middle)) <= wanted ? low : high) = middle;
        }
        return max_logit_ + static_cast<float>(natural_log(from_ordered(low)) / kLn2) / scale_;
    }

    float logit_above_tail(double tail) const {
        return logit_above_tail(tail, [](size_t) {});
    }

  private:
    // The sum of the sampled weights below a weight.
    double mass_below(float weight) const {
        const f32x16 bound = broadcast(weight);
        const auto below = [&](size_t i) {
            const f32x16 w = load(weights_ + i);
            return select(~at_least(w, bound) & kAllLanes, w);
        };
        f32x16 sums[2] = {broadcast(0.0f), broadcast(0.0f)};
        size_t i = 0;
        for (; i + 2 * kLanes <= count_; i += 2 * kLanes) {
            sums[0] = sums[0] + below(i);
            sums[1] = sums[1] + below(i + kLanes);
        }
        if (i < count_) sums[0] = sums[0] + below(i);
        return static_cast<double>(sum(sums[0] + sums[1]));
    }

    static constexpr size_t kBlocks = 4, kHalvings = 8;

    const float scale_;
    alignas(64) float weights_[kBlocks / 2 * kLogitsBlock];  // of every other sampled block
    size_t count_ = 0;
    float max_logit_ = kMinusInfinity;
    double mass_ = 0;
    double share_ = 0;  // how much of the row weights_ holds
};

}  // namespace decodestep::DECODESTEP_BUILD
