// The exponential race: the first maximum of value / noise. A bound without division or logarithm rules out most
// tokens.
#pragma once

#include "sampling/row/workspace.h"
#include "simd/noise.h"

namespace decodestep::DECODESTEP_BUILD {

enum class Noise { none, given, seeded };

// The ids of sixteen tokens: from a list with room for sixteen, or consecutive ones.
struct ListedIds {
    const int32_t* ids;
    i32x16 vector() const { return load_bits(ids); }
    uint32_t at(size_t lane) const { return static_cast<uint32_t>(ids[lane]); }
};
struct IdsFrom {
    uint32_t first;
    i32x16 vector() const {
        static constexpr int32_t lanes[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        return load_bits(lanes) + broadcast_int(first);
    }
    uint32_t at(size_t lane) const { return first + static_cast<uint32_t>(lane); }
};

// value = weight / total, both float32; score = value / (noise + eps). A score that is NaN loses.
template <Noise noise>
class ExponentialRace {
  public:
    ExponentialRace(const float* q, uint32_t state, float eps, float total)
        : q_(q), state_(state), eps_(eps), total_(total) {}

    int64_t winner() const { return winner_; }  // its place; 0 if no score is above -inf

    // Enters the tokens at places first, first + 1 ...: the lanes of the mask, which are the low ones. Given noise is
    // looked up by place, seeded noise by id.
    template <class Ids>
    DECODESTEP_INLINE void enter(f32x16 weights, Mask lanes, size_t first, Ids ids) {
        Mask mask = lanes & may_win(weights, lanes, first, ids);
        if (!mask) return;
        float weight[kLanes];
        store(weight, weights);
        for (; mask; mask &= mask - 1) {
            const auto lane = static_cast<size_t>(std::countr_zero(mask));
            const float score = score_of(weight[lane] / total_, first + lane, ids.at(lane));
            if (!(score > best_)) continue;
            best_ = score;
            winner_ = static_cast<int64_t>(first + lane);
            raise_bound();
        }
    }

  private:
    template <class Ids>
    DECODESTEP_INLINE Mask may_win(f32x16 weights, Mask lanes, size_t first, Ids ids) const {
        f32x16 below = broadcast(1.0f);
        if constexpr (noise == Noise::given) {
            prefetch(q_ + first + 2 * kLogitsBlock);
            below = magnitude(lanes == kAllLanes ? load(q_ + first)
                                                 : load_partial(q_ + first, static_cast<size_t>(std::popcount(lanes))));
        }
        // -log(1 - u) >= u
        if constexpr (noise == Noise::seeded)
            below = unsigned_to_float(noise_bits(state_, ids.vector())) * broadcast(0x1p-32f);
        if constexpr (noise != Noise::none) below = below + broadcast(eps_);
        return at_least(weights, max(below * broadcast(factor_) - broadcast(slack_), broadcast(floor_)));
    }

    DECODESTEP_INLINE float score_of(float value, size_t place, uint32_t id) const {
        if constexpr (noise == Noise::given) return value / (std::fabs(q_[place]) + eps_);
        if constexpr (noise == Noise::seeded) return value / (exponential(decodestep::noise_bits(state_, id)) + eps_);
        return value;
    }

    // After a new best score: a weight below factor * noise - slack has lost, whatever the roundings of the two
    // quotients, of the noise and of this bound, for the slack is more than half the spacing of the smallest values.
    // Zero has lost to any score that is not negative.
    void raise_bound() {
        if (best_ < 0.0f) return;
        constexpr float least = std::numeric_limits<float>::min(), most = std::numeric_limits<float>::max();
        const double factor = static_cast<double>(best_) * static_cast<double>(total_) * (1.0 - 0x1p-18);
        factor_ = best_ < least || factor < least ? 0.0f : static_cast<float>(std::min<double>(factor, most));
        slack_ = total_ * 0x1p-148f;
        floor_ = std::numeric_limits<float>::denorm_min();
    }

    const float* q_;
    uint32_t state_;
    float eps_, total_;
    float best_ = kMinusInfinity, factor_ = 0, slack_ = std::numeric_limits<float>::infinity(), floor_ = kMinusInfinity;
    int64_t winner_ = 0;
};

// Calls body(race) with the race for that kind of noise, and returns the winner.
template <class Body>
int64_t with_race(Noise noise, const float* q, uint32_t state, float eps, float total, Body&& body) {
    const auto run = [&](auto race) {
        body(race);
        return race.winner();
    };
    switch (noise) {
        case Noise::given:
            return run(ExponentialRace<Noise::given>(q, state, eps, total));
        case Noise::seeded:
            return run(ExponentialRace<Noise::seeded>(q, state, eps, total));
        default:
            return run(ExponentialRace<Noise::none>(q, state, eps, total));
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
