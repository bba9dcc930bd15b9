// log, log1p and exp in float64, operation for operation as in src/decodestep/_base/exact_math.py; no fused
// multiply-add.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "core/compiler.h"

namespace decodestep {

constexpr double kLn2 = 0.6931471805599453;
constexpr double kSqrtHalf = 0.7071067811865476;

DECODESTEP_INLINE double two_atanh(double s) {
    const double z = s * s;
    double total = 1.0 / 19.0;
    for (int k = 17; k >= 3; k -= 2) total = total * z + 1.0 / k;
    return 2.0 * (s + s * (z * total));
}

// x positive, finite and normal: every positive float32 is, once widened.
DECODESTEP_INLINE double natural_log(double x) {
    const auto bits = std::bit_cast<uint64_t>(x);
    int e = static_cast<int>(bits >> 52) - 1022;
    double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFFu) | 0x3FE0000000000000u);  // in [1/2, 1)
    if (m < kSqrtHalf) {
        m = m + m;
        e = e - 1;
    }
    return e * kLn2 + two_atanh((m - 1.0) / (m + 1.0));
}

// log(1 - u) for u in [0, 1).
DECODESTEP_INLINE double log1p_neg(double u) {
    const double w = 1.0 - u;
    return w > kSqrtHalf ? two_atanh(-u / (2.0 - u)) : natural_log(w);
}

constexpr std::array<double, 14> kTaylor = [] {
    std::array<double, 14> inverse_factorial{1.0};
    for (int k = 1; k < 14; ++k) inverse_factorial[k] = inverse_factorial[k - 1] / k;
    return inverse_factorial;
}();

// e^x for x <= 709; 0 below -708 and for NaN.
DECODESTEP_INLINE double natural_exp(double x) {
    const bool tiny = !(x >= -708.0);
    x = tiny ? 0.0 : x;
    const double n = std::rint(x * (1.0 / kLn2));
    const double r = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10;
    double total = kTaylor[13];
    for (int k = 12; k >= 0; --k) total = total * r + kTaylor[k];
    const double scale = std::bit_cast<double>(static_cast<uint64_t>(static_cast<int>(n) + 1023) << 52);
    return tiny ? 0.0 : total * scale;
}

}  // namespace decodestep
