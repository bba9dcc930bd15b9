// log and log1p in float64, operation for operation as in src/decodestep/elementary.py; no fused multiply-add.
#pragma once

#include <bit>
#include <cstdint>

namespace decodestep {

constexpr double kLn2 = 0.6931471805599453;
constexpr double kSqrtHalf = 0.7071067811865476;

inline double two_atanh(double s) {
    const double z = s * s;
    double total = 1.0 / 19.0;
    for (int k = 17; k >= 3; k -= 2) total = total * z + 1.0 / k;
    return 2.0 * (s + s * (z * total));
}

// x positive, finite and normal: every positive float32 is, once widened.
inline double natural_log(double x) {
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
inline double log1p_neg(double u) {
    const double w = 1.0 - u;
    return w > kSqrtHalf ? two_atanh(-u / (2.0 - u)) : natural_log(w);
}

}  // namespace decodestep
