"""log, log1p and exp with a stated order of evaluation, so that every backend has the same bits.

Everything except `exp_float32` runs in float64: additions, multiplications and divisions in the order written, without fused
multiply-add; callers that need float32 round once, at the end. The errors are a few float64 units in the last place, so the
float32 result is correctly rounded except for about one argument in 10^8.
The same in C++: `csrc/core/exact_math.h`, and for `exp_float32` `csrc/sampling/top_k_top_p_sample/softmax.h`.
"""

from __future__ import annotations

from itertools import accumulate
from operator import truediv

import numpy as np

_LN2 = 0.6931471805599453
_LN2_HIGH = 0.6931471803691238  # ln 2 with its low 21 bits cleared: n * _LN2_HIGH is exact for |n| < 2^21
_LN2_LOW = 1.9082149292705877e-10
_SQRT_HALF = 0.7071067811865476
_ATANH = [1.0 / k for k in range(3, 21, 2)]  # atanh(s) / s - 1 = s^2/3 + s^4/5 + ... + s^18/19
_TAYLOR = list(accumulate(range(1, 14), truediv, initial=1.0))  # 1 / k!, each the one before it divided by k
# (e^r - 1 - r) / r^2, as in S. Moshier's Cephes
_POLYNOMIAL = np.array(
    [1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1], np.float32
)


def _two_atanh(s: np.ndarray) -> np.ndarray:
    z = s * s
    total = np.full_like(z, _ATANH[-1])
    for coefficient in _ATANH[-2::-1]:
        total = total * z + coefficient
    return 2.0 * (s + s * (z * total))


def log(x: np.ndarray | float) -> np.ndarray:
    """Natural logarithm of positive finite float64: 2 atanh((m-1)/(m+1)) + e ln 2 with m in [sqrt(1/2), sqrt(2))."""
    m, e = np.frexp(np.asarray(x, np.float64))
    low = m < _SQRT_HALF
    m = np.where(low, m + m, m)
    e = np.where(low, e - 1, e)
    return e * _LN2 + _two_atanh((m - 1.0) / (m + 1.0))


def log1p_neg(u: np.ndarray) -> np.ndarray:
    """log(1 - u) for u in [0, 1): the series in -u / (2 - u) while 1 - u > sqrt(1/2), else `log` of the exact 1 - u."""
    u = np.asarray(u, np.float64)
    w = 1.0 - u
    return np.where(w > _SQRT_HALF, _two_atanh(-u / (2.0 - u)), log(w))


def exp(x: np.ndarray | float) -> np.ndarray:
    """e^x for float64 x <= 709, 0 below -708 and for -inf: 2^n times the Taylor polynomial of degree 13."""
    x = np.asarray(x, np.float64)
    tiny = ~(x >= -708.0)
    x = np.where(tiny, 0.0, x)
    n = np.rint(x * (1.0 / _LN2))
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    total = np.full_like(r, _TAYLOR[-1])
    for coefficient in _TAYLOR[-2::-1]:
        total = total * r + coefficient
    return np.where(tiny, 0.0, np.ldexp(total, n.astype(np.int32)))


def exp_float32(x: np.ndarray) -> np.ndarray:
    """e^x in float32 for x <= 0: at most 1, within one unit in the last place; 0 below -87 and for NaN.

    Runs in float32 throughout: 2^n times a polynomial in the remainder.
    """
    x = np.asarray(x, np.float32)
    tiny = ~(x >= np.float32(-87))
    x = np.where(tiny, np.float32(0), x)
    n = np.rint(x * np.float32(1.44269504))
    r = (x - n * np.float32(0.693359375)) - n * np.float32(-2.12194440e-4)  # ln 2 in two parts, the first product exact
    total = np.full_like(r, _POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        total = total * r + coefficient
    total = (total * (r * r) + r) + np.float32(1)
    return np.where(tiny, np.float32(0), np.ldexp(total, n.astype(np.int32)))
