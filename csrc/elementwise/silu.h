// The gate of SwiGLU, for kernels that process its values further.
#pragma once

#include "simd/exp.h"

namespace decodestep::DECODESTEP_ISA {

DECODESTEP_INLINE f32x16 gated(f32x16 gate, f32x16 up) {
    const f32x16 one = broadcast(1.0f);
    gate = max(broadcast(-88.0f), gate);  // exp(-gate) stays finite; the result is about 0 there
    return gate / (one + exp(broadcast(0.0f) - gate)) * up;
}

}  // namespace decodestep::DECODESTEP_ISA
