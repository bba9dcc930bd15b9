// A softmax whose every bit is specified: float32 weights from additions and multiplications only, sums in float64.
// src/decodestep/ops/top_k_top_p_sample/reference.py has the same operations.
#pragma once

#include <cmath>

#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {

// e^x for x <= 0, operation for operation `exp_float32` of src/decodestep/_base/exact_math.py; 0 below -87 and for NaN.
DECODESTEP_INLINE f32x16 stated_exp(f32x16 x) {
    const Mask alive = at_least(x, broadcast(-87.0f)) & kAllLanes;
    x = max(x, broadcast(-87.0f));
    const f32x16 n = round_even(x * broadcast(1.44269504f));
    const f32x16 r = (x - n * broadcast(0.693359375f)) - n * broadcast(-2.12194440e-4f);
    f32x16 y = broadcast(1.9875691500e-4f);
    for (const float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        y = y * r + broadcast(c);
    return select(alive, times_exp2((y * (r * r) + r) + broadcast(1.0f), n));
}

// A sum in float64, in a specified order: the term at place i is added to partial sum i mod 16, and the partial sums
// are folded in halves.
class LaneSums {
  public:
    DECODESTEP_INLINE void add(f32x16 a) { sums_ = sums_ + a; }

    double total() const {
        double parts[kLanes];
        store(parts, sums_);
        for (int width = kLanes / 2; width > 0; width /= 2)
            for (int i = 0; i < width; ++i) parts[i] += parts[i + width];
        return parts[0];
    }

  private:
    f64x16 sums_{};
};

// Probabilities as integer multiples of 2^-52: rounded up, at least 1 if positive, clamped to [0, 1] before. float64
// adds those exactly up to sums of 2, so sums do not depend on the order of their terms. NaN counts 0.
constexpr double kUnits = 0x1p52;
DECODESTEP_INLINE float units(float value) {
    const float inside = value > 0.0f ? (value < 1.0f ? value : 1.0f) : 0.0f;
    return std::ceil(inside * static_cast<float>(kUnits));
}
DECODESTEP_INLINE f32x16 units(f32x16 values) {
    const f32x16 inside = max(min(values, broadcast(1.0f)), broadcast(0.0f)) * broadcast(static_cast<float>(kUnits));
    const f32x16 near = round_even(inside);
    return near + select(~at_least(near, inside) & kAllLanes, broadcast(1.0f));
}

// The weights of a softmax, or the inputs themselves; value = weight / total.
class SoftmaxWeights {
  public:
    // The softmax of inputs whose largest is `top`. Where that is -inf (all are -inf or NaN) all values are 0; where it
    // is +inf its equals have weight 1, the others 0.
    static SoftmaxWeights softmax(float top) {
        return SoftmaxWeights(std::isinf(top) ? Kind::infinite : Kind::finite, top);
    }
    static SoftmaxWeights raw() { return SoftmaxWeights(Kind::raw, 0.0f); }

    bool are_raw() const { return kind_ == Kind::raw; }
    bool none() const { return kind_ == Kind::infinite && top_ < 0.0f; }
    float total = 1;

    DECODESTEP_INLINE f32x16 of(f32x16 x) const {
        if (kind_ == Kind::finite) return stated_exp(x - broadcast(top_));
        if (kind_ == Kind::raw) return select(at_least(x, x) & kAllLanes, x);
        return select(none() ? 0 : at_least(x, broadcast(top_)) & kAllLanes, broadcast(1.0f));
    }
    DECODESTEP_INLINE f32x16 values_of(f32x16 x) const {
        const f32x16 weights = of(x);
        return kind_ == Kind::raw ? weights : weights / broadcast(total);
    }

    // Sets the total, rounded to float32 as the weights are.
    void divide_by(const LaneSums& sums) {
        if (!are_raw() && !none()) total = static_cast<float>(sums.total());
    }

  private:
    enum class Kind { finite, infinite, raw };
    SoftmaxWeights(Kind kind, float top) : kind_(kind), top_(top) {}

    Kind kind_;
    float top_;
};

}  // namespace decodestep::DECODESTEP_BUILD
