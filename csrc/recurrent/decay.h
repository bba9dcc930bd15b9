// The factor that a state keeps, from its logarithm.
#pragma once

#include "simd/exp.h"

namespace decodestep::DECODESTEP_BUILD {

// e^x to about one unit in the last place; 0 from -87 down, at most e^88. NaN stays NaN.
DECODESTEP_INLINE f32x16 decay_of(f32x16 x) {
    const Mask gone = at_least(broadcast(-87.0f), x);
    return select(~gone & kAllLanes, exp(x));
}

}  // namespace decodestep::DECODESTEP_BUILD
