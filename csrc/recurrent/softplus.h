// ln(1 + e^x), in float64 and without fused multiply-adds: the same bits on every machine.
#pragma once

#include "core/exact_math.h"

namespace decodestep {

// x itself above 20, where the difference is below half a unit of float32; NaN stays NaN.
DECODESTEP_INLINE float softplus(float x) {
    if (!(x <= 20.0f)) return x;
    const double e = natural_exp(x);
    // As in log1p_neg: of a small e the sum 1 + e would keep few digits.
    return static_cast<float>(e < 0.4 ? two_atanh(e / (2.0 + e)) : natural_log(1.0 + e));
}

}  // namespace decodestep
