// The activations of feed-forward blocks, for kernels that process their values further.
#pragma once

#include "simd/exp.h"

namespace decodestep::DECODESTEP_ISA {

DECODESTEP_INLINE f32x16 gated(f32x16 gate, f32x16 up) {
    const f32x16 one = broadcast(1.0f);
    gate = max(broadcast(-88.0f), gate);  // exp(-gate) stays finite; the result is about 0 there
    return gate / (one + exp(broadcast(0.0f) - gate)) * up;
}

DECODESTEP_INLINE f32x16 squared_relu(f32x16 x) {
    x = max(broadcast(0.0f), x);
    return x * x;
}

}  // namespace decodestep::DECODESTEP_ISA
