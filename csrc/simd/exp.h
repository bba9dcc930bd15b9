// Approximations of e^x and 2^x in float32.
#pragma once

#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr float kLog2E = 1.44269504f;

// e^x to about one unit in the last place for x <= 88, x first raised to -87: about 1e-38. NaN stays NaN.
DECODESTEP_INLINE f32x16 exp_below_limit(f32x16 x) {
    x = max(broadcast(-87.0f), x);
    const f32x16 n = round_even(x * broadcast(kLog2E));
    f32x16 r = fma(n, broadcast(-0.693359375f), x);  // ln 2 in two parts, the first short enough for exact products
    r = fma(n, broadcast(2.12194440e-4f), r);
    f32x16 y = broadcast(1.9875691500e-4f);
    for (const float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        y = fma(y, r, broadcast(c));
    return times_exp2(fma(y, r * r, r) + broadcast(1.0f), n);
}

// The same for any x, which is lowered to 88: about 1e38.
DECODESTEP_INLINE f32x16 exp(f32x16 x) { return exp_below_limit(min(broadcast(88.0f), x)); }

// 2^x within 2^-18 of it; below -126 at most 2^-126, from 128 on +inf; any value for NaN. The last bits differ between
// targets.
DECODESTEP_INLINE f32x16 exp2(f32x16 x) {
    const Exponent e = split_exponent(x);
    f32x16 y = broadcast(0.013534137f);
    for (const float c : {0.05201149f, 0.24144277f, 0.69300383f, 1.0000026f}) y = fma(y, e.fraction, broadcast(c));
    return times_exp2(y, e.whole);
}

}  // namespace decodestep::DECODESTEP_BUILD
