// Exponents in two parts, for targets without an instruction for it. Included at the end of such a target's file.
#pragma once

namespace decodestep::DECODESTEP_BUILD {

// An exponent as a fraction in [0, 1] and a power for times_exp2.
struct Exponent {
    f32x16 fraction, whole;
};
DECODESTEP_INLINE Exponent split_exponent(f32x16 x) {
    x = min(max(x, broadcast(-126.0f)), broadcast(128.0f));
    const f32x16 n = round_even(x - broadcast(0.5f));
    return {x - n, n};
}

}  // namespace decodestep::DECODESTEP_BUILD
