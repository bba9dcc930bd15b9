// The highest logits of a row in one pass, above a threshold estimated from a sample of the row. The caller must check
// that enough tokens reached it.
#pragma once

#include "sampling/row/logits.h"
#include "sampling/row/threshold.h"
#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {

template <LogitType type>
class SampledThreshold {
  public:
    SampledThreshold(Logits<type> logits, Workspace& work) : logits_(logits), work_(work) {}

    // A threshold that very likely `count` logits reach, and not many times as many; -inf where the row is too short
    // for a sample, or `count` too large. The sample is every 32nd strip.
    float estimate(size_t count) const {
        const size_t sampled = logits_.vocab / (kStrip * kStride), groups = std::min(sampled, kFolded) * kLanes;
        // The number of them in the sample has this mean, and nearly that variance: it is seldom greater than the mean
        // and two and a half standard deviations. A threshold that more logits of the sample reach is low enough.
        const double expected = static_cast<double>(count) / kStride;
        const double rank = expected + 2.5 * std::sqrt(expected) + 1;
        if (sampled < 8 || rank > static_cast<double>(groups) / 4) return kMinusInfinity;
        alignas(64) float maxima[kFolded * kLanes];
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
        // First a pass without a branch on what it reads, which notes the strips that reach the threshold: mispredicted
        // branches would hold up what is on its way from memory.
        const f32x16 least = broadcast(threshold);
        const size_t strips = logits_.vocab / kStrip, part = strips / kParts;
        uint64_t* found[kParts];
        size_t count[kParts] = {};
        for (size_t which = 0; which < kParts; ++which) found[which] = work_.keys.get() + which * part;
        const auto look_at = [&](size_t strip, size_t which) {
            found[which][count[which]] = strip;
            count[which] += at_least(maxima_of_strip<kPrefetches>(strip * kStrip), least) != 0;
        };
        for (size_t i = 0; i < part; ++i)
#pragma GCC unroll 4
            for (size_t which = 0; which < kParts; ++which) look_at(which * part + i, which);
        for (size_t strip = kParts * part; strip < strips; ++strip) look_at(strip, kParts - 1);

        size_t n = 0;
        const auto list = [&](uint64_t marks, size_t first) {
            n += logits_.list_marked(marks, first, work_.ids.get() + n, work_.scores.get() + n);
        };
        for (size_t which = 0; which < kParts; ++which)
            for (size_t i = 0; i < count[which] && n <= most; ++i) {
                const size_t first = found[which][i] * kStrip;
                uint64_t marks = 0;
                for (size_t j = 0; j < kStrip; j += kLanes)
                    marks |= uint64_t{at_least(logits_.load(first + j), least)} << j;
                list(marks, first);
            }
        uint64_t marks = 0;
        logits_.each_vector_from(strips * kStrip, logits_.vocab,
                                 [&](f32x16 x, size_t i) { marks |= uint64_t{at_least(x, least)} << i % kStrip; });
        list(marks, strips * kStrip);
        return n;
    }

  private:
    static constexpr size_t kStrip = 64;   // the logits that one comparison rules out
    static constexpr size_t kStride = 32;  // one strip in so many is in the sample
    static constexpr size_t kFolded = 16;  // the vectors that the sample's maxima are folded into

    // On cores that read several streams of memory faster than one, this many parts of a row are read in parallel and
    // left to the hardware prefetcher: on Zen 3, 513 KB take 22 us, compared with 31 us in one stream with software
    // prefetches. Measured with AVX2; with AVX-512 registers one stream is used.
    static constexpr size_t kParts = kStreams > 1 && kVectorRegisters < 32 ? 4 : 1;
    static constexpr bool kPrefetches = kParts == 1;

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

}  // namespace decodestep::DECODESTEP_BUILD
