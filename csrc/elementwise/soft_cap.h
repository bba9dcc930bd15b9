// The soft cap of scores and logits, for kernels that process their values further.
#pragma once

#include "simd/exp.h"

namespace decodestep::DECODESTEP_BUILD {

// cap * tanh(x / cap), with tanh(z) = 1 - 2 / (1 + e^2z). NaN stays NaN.
DECODESTEP_INLINE f32x16 soft_capped(f32x16 x, float cap) {
    const f32x16 one = broadcast(1.0f);
    return broadcast(cap) * (one - broadcast(2.0f) / (one + exp(x * broadcast(2.0f / cap))));
}

}  // namespace decodestep::DECODESTEP_BUILD
