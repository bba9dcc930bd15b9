// The gate of SwiGLU, for kernels that go on with its values.
#pragma once

#include "simd/exp.h"

namespace decodestep::DECODESTEP_ISA {

DECODESTEP_INLINE f32x16 gated(f32x16 gate, f32x16 up) {
    const f32x16 one = broadcast(1.0f);
    gate = max(broadcast(-88.0f), gate);  // exp stays finite, so a gate far below must not outgrow it
    return gate / (one + exp(broadcast(0.0f) - gate)) * up;
}

}  // namespace decodestep::DECODESTEP_ISA
