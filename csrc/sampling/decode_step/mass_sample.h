// A guess from a few blocks of a row, before the pass over all of it: from which logit on most of the mass lies.
#pragma once

#include "sampling/decode_step/mass_sweep.h"
#include "sampling/row/threshold.h"

namespace decodestep::DECODESTEP_ISA {

template <Real real>
class MassSample {
  public:
    MassSample(const Logits<real>& logits, float scale, Workspace& work)
        : scale_(scale), weights_(work.selection.get()) {
        const size_t sampled = std::min<size_t>(logits.blocks(), kBlocks), stride = logits.blocks() / sampled;
        const auto block = [&](size_t i) { return stride / 2 + i * stride; };
        f32x16 best = broadcast(kNothing);
        for (size_t i = 0; i < sampled; ++i) logits.prefetch_block(block(i));
        for (size_t i = 0; i < sampled; ++i)
            logits.each_vector(block(i), [&](f32x16 x, size_t) { best = max(x, best); });
        largest_ = decodestep::DECODESTEP_ISA::largest(best);
        if (!std::isfinite(largest_)) return;
        const Weight weight{broadcast(scale), broadcast(-scale * largest_)};
        double mass = 0, heaviest = 0;
        size_t seen = 0;
        for (size_t i = 0; i < sampled; ++i) {
            f32x16 sums = broadcast(0.0f);
            logits.each_vector(block(i), [&](f32x16 x, size_t) {
                const f32x16 w = weight(x);
                sums = sums + w;
                seen += kLanes;
                if (i % 2 == 0) {
                    store(weights_ + count_, w);
                    count_ += kLanes;
                }
            });
            const auto block_mass = static_cast<double>(sum(sums));
            mass += block_mass;
            heaviest = std::max(heaviest, block_mass);
        }
        // A single block may hold the tokens that outweigh all others; the row has no more of them.
        const double others = sampled > 1 ? (mass - heaviest) / static_cast<double>(sampled - 1) : mass;
        mass_ = others * static_cast<double>(logits.blocks());
        share_ = static_cast<double>(count_ * sampled) / static_cast<double>(seen * logits.blocks());
    }

    float largest() const { return largest_; }
    double mass() const { return mass_; }  // of the row, relative to `largest`

    // About the logit below which a mass of `tail` lies. Calls meanwhile(0), meanwhile(1), ... kHalvings times.
    template <class Meanwhile>
    float above(double tail, Meanwhile&& meanwhile) const {
        const double wanted = tail * share_;
        uint32_t low = ordered(0x1p-64f), high = ordered(1.0f);
        for (size_t i = 0; i < kHalvings; ++i) {
            meanwhile(i);
            const uint32_t middle = low + (high - low) / 2;
            (mass_below(from_ordered(middle)) <= wanted ? low : high) = middle;
        }
        return largest_ + static_cast<float>(natural_log(from_ordered(low)) / kLn2) / scale_;
    }

    float above(double tail) const {
        return above(tail, [](size_t) {});
    }

  private:
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
    float* const weights_;  // the weights of some of the blocks
    size_t count_ = 0;
    float largest_ = kNothing;
    double mass_ = 0, share_ = 0;
};

}  // namespace decodestep::DECODESTEP_ISA
