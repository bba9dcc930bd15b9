// The draw: the first maximum of score + gumbel(seed, position, token). The exact noise is computed only for tokens
// that may win.
#pragma once

#include "sampling/row/logits.h"
#include "simd/exp.h"
#include "simd/noise.h"

namespace decodestep::DECODESTEP_BUILD {

// Gumbel noise is -log(q), where the exponential q = -log(1 - u) is at least u = bits * 2^-32. So score + noise > best
// requires bits < 2^32 * exp(score - best): one approximate exp rules out most of sixteen tokens, and the exact
// logarithms are computed only for the few that are left.
class GumbelRace {
  public:
    GumbelRace(uint64_t seed, uint32_t position) : state_(noise_state(seed, position)) {}

    int64_t winner() const { return winner_; }
    float score() const { return score_; }  // the winner's

    // The score is finite; ids come in any order. The lower id wins among equals.
    DECODESTEP_INLINE void enter(int32_t id, float score) {
        const float noise = gumbel(decodestep::noise_bits(state_, static_cast<uint32_t>(id)));
        const double total = static_cast<double>(score) + static_cast<double>(noise);
        if (total < best_ || (total == best_ && id > winner_)) return;
        best_ = total;
        winner_ = id;
        score_ = score;
        // ln 2^32 = 22.18071, and room for the errors of exp2 and of the conversions to float32
        headroom_ = broadcast(static_cast<float>(22.1808 - best_ + std::fabs(best_) * 0x1p-20));
    }

    // The lanes that may still win. The scores may be off by two roundings of float32.
    DECODESTEP_INLINE Mask may_win(f32x16 scores, i32x16 ids) const {
        const f32x16 lead = fma(magnitude(scores), broadcast(0x1p-21f), scores) + headroom_;
        return at_least(exp2(lead * broadcast(kLog2E)), unsigned_to_float(noise_bits(state_, ids)));
    }

    // Finite scores; there is room for fifteen ids and scores beyond n.
    void enter_all(const int32_t* ids, const float* scores, size_t n) {
        Mask open = n > 1 ? ~enter_likely(ids, scores, std::min<size_t>(n, kLanes)) : kAllLanes;
        for (size_t i = 0; i < n; i += kLanes, open = kAllLanes) {
            Mask mask = may_win(load(scores + i), load_bits(ids + i)) & open;
            if (n - i < kLanes) mask &= (1u << (n - i)) - 1;
            for (; mask; mask &= mask - 1) {
                const size_t at = i + static_cast<size_t>(std::countr_zero(mask));
                enter(ids[at], scores[at]);
            }
        }
    }

  private:
    // Enters, of the first n <= 16, the token with the largest exp(score) / bits: it is their winner or close to it, so
    // that few others need a logarithm afterwards. Returns its lane.
    Mask enter_likely(const int32_t* ids, const float* scores, size_t n) {
        const Mask beyond = kAllLanes & ~((1u << n) - 1);
        const f32x16 s = max(load(scores) + select(beyond, broadcast(kMinusInfinity)), broadcast(kMinusInfinity));
        const f32x16 weights = exp2((s - broadcast(largest(s))) * broadcast(kLog2E));
        const f32x16 ratios = weights / (unsigned_to_float(noise_bits(state_, load_bits(ids))) + broadcast(1.0f));
        const auto best = static_cast<size_t>(std::countr_zero(at_least(ratios, broadcast(largest(ratios)))));
        if (best >= n || !(scores[best] > kMinusInfinity)) return 0;
        enter(ids[best], scores[best]);
        return 1u << best;
    }

    uint32_t state_;
    double best_ = -std::numeric_limits<double>::infinity();
    int64_t winner_ = -1;
    float score_ = 0;
    f32x16 headroom_ = broadcast(std::numeric_limits<float>::max());
};

}  // namespace decodestep::DECODESTEP_BUILD
