// The highest logits of a row in one pass, above a threshold estimated from a sample of the row. The caller must check
// that enough tokens reached it.
#pragma once

#include "sampling/row/logits.h"
#include "sampling/row/threshold.h"

namespace decodestep::DECODESTEP_ISA {

template <LogitType type>
class SampledThreshold {
  public:
    SampledThreshold(Logits<type> logits, Workspace& work) : logits_(logits), work_(work) {}

    // A threshold that very likely `count` logits reach, and not many times as many; -inf where the row is too short
    // for a sample, or `count` too large. The sample is every 16th strip; work.group_max is overwritten.
    float estimate(size_t count) const {
        const size_t sampled = logits_.vocab / (kStrip * kStride), groups = std::min(sampled, kFolded) * kLanes;
        // The number of them in the sample has this mean, and nearly that variance: it is seldom greater than the mean
        // and two and a half standard deviations. A threshold that more logits of the sample reach is low enough.
        const double expected = static_cast<double>(count) / kStride;
        const double rank = expected + 2.5 * std::sqrt(expected) + 1;
        if (sampled < 8 || rank > static_cast<double>(groups) / 4) return kMinusInfinity;
        float* const maxima = work_.group_max.get();
        f32x16 best = broadcast(kMinusInfinity);
        for (size_t i = 0; i < sampled; ++i) {
            const f32x16 here = maxima_of_strip<false>((i * kStride + kStride / 2) * kStrip);
            float* const folded = maxima + i % kFolded * kLanes;
            store(folded, i < kFolded ? here : max(here, load(folded)));
            best = max(here, best);
        }
        const auto reached = [&](float t) { return count_at_least(maxima, groups, t); };
        return threshold_reached_by(static_cast<size_t>(rank), 1, largest(best), reached);
    }

    // Lists the tokens with logits >= threshold, which is above -inf, ascending, and returns their number. Stops early,
    // with a number above `most`, where there are more than that.
    size_t list_from(float threshold, size_t most) const {
        const f32x16 least = broadcast(threshold);
        size_t n = 0, i = 0;
        const auto add = [&](f32x16 x) {
            if (const Mask mask = at_least(x, least))
                n += compact(mask, x, static_cast<int32_t>(i), work_.scores.get() + n, work_.ids.get() + n);
        };
        while (i + kStrip <= logits_.vocab && n <= most) {
            if (!at_least(maxima_of_strip<true>(i), least)) {
                i += kStrip;
                continue;
            }
            for (const size_t end = i + kStrip; i < end; i += kLanes) add(logits_.load(i));
        }
        for (; i + kLanes <= logits_.vocab && n <= most; i += kLanes) add(logits_.load(i));
        if (i < logits_.vocab && n <= most) add(logits_.load_last(i, logits_.vocab - i));
        return n;
    }

  private:
    static constexpr size_t kStrip = 8 * kLanes;  // the logits that one comparison rules out
    static constexpr size_t kStride = 16;         // one strip in so many is in the sample
    static constexpr size_t kFolded = 16;         // the vectors that the sample's maxima are folded into

    // Sixteen maxima that cover the strip from i on.
    template <bool and_prefetch>
    DECODESTEP_INLINE f32x16 maxima_of_strip(size_t i) const {
        f32x16 even = broadcast(kMinusInfinity), odd = even;
#pragma GCC unroll 4
        for (size_t j = i; j < i + kStrip; j += 2 * kLanes) {
            const auto* const p = logits_.data + j;
            if constexpr (and_prefetch) prefetch(p + 2 * kLogitsBlock, 2 * kLanes * sizeof(*p));
            f32x16 a = logits_.load(j), b = logits_.load(j + kLanes);
            if constexpr (Logits<type>::kPairStep == 2) logits_.load_pair(p, a, b);  // a maximum needs no order
            even = max(a, even);
            odd = max(b, odd);
        }
        return max(even, odd);
    }

    const Logits<type> logits_;
    Workspace& work_;
};

}  // namespace decodestep::DECODESTEP_ISA
