// The activation functions of feed-forward blocks, for kernels that process their values further.
#pragma once

#include "simd/exp.h"

namespace decodestep::DECODESTEP_BUILD {

// 1 / (1 + e^-x)
DECODESTEP_INLINE f32x16 sigmoid(f32x16 x) {
    const f32x16 one = broadcast(1.0f);
    return one / (one + exp(broadcast(0.0f) - max(broadcast(-88.0f), x)));
}

// gate * sigmoid(gate) * up
DECODESTEP_INLINE f32x16 gated(f32x16 gate, f32x16 up) {
    const f32x16 one = broadcast(1.0f);
    gate = max(broadcast(-88.0f), gate);  // exp(-gate) stays finite; the result is about 0 there
    return gate / (one + exp(broadcast(0.0f) - gate)) * up;
}

// The same with GELU in its form with tanh, g / (1 + exp(-2 sqrt(2 / pi) (g + 0.044715 g^3))).
DECODESTEP_INLINE f32x16 gelu_gated(f32x16 gate, f32x16 up) {
    const f32x16 one = broadcast(1.0f);
    const f32x16 slope = fma(gate * gate, broadcast(0.071354814f), broadcast(1.5957692f));
    const f32x16 exponent = max(broadcast(-88.0f), gate * slope);
    return gate / (one + exp(broadcast(0.0f) - exponent)) * up;
}

// g / (1 + exp(-1.702 g)) * (up + 1), with g = min(gate, 7), and up first brought into [-7, 7]. NaN stays NaN.
DECODESTEP_INLINE f32x16 clamped_swiglu(f32x16 gate, f32x16 up) {
    const f32x16 one = broadcast(1.0f), limit = broadcast(7.0f);
    gate = max(broadcast(-51.0f), min(limit, gate));  // below, the result is about 0
    up = max(broadcast(-7.0f), min(limit, up));
    return gate / (one + exp(gate * broadcast(-1.702f))) * (up + one);
}

DECODESTEP_INLINE f32x16 squared_relu(f32x16 x) {
    x = max(broadcast(0.0f), x);
    return x * x;
}

}  // namespace decodestep::DECODESTEP_BUILD
