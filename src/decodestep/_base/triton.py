"""The arithmetic of `exact_math` in Triton, operation for operation: functions that kernels call.

Kernels that use these are launched with ``enable_fp_fusion=False`` (`LAUNCH`): a fused multiply-add would round once where the
contract rounds twice. Division and square root of float32 go through `tl.div_rn` and `tl.sqrt_rn`, which round correctly;
those of float64 always do.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

LAUNCH: dict[str, Any] = {"enable_fp_fusion": False}
MINUS_INFINITY = tl.constexpr(float("-inf"))

_LN2 = tl.constexpr(0.6931471805599453)
_LN2_HIGH = tl.constexpr(0.6931471803691238)
_LN2_LOW = tl.constexpr(1.9082149292705877e-10)
_SQRT_HALF = tl.constexpr(0.7071067811865476)
_MAGIC64 = tl.constexpr(6755399441055744.0)  # 1.5 * 2^52: adding and subtracting it rounds to an integer, half to even
_MAGIC32 = tl.constexpr(12582912.0)  # 1.5 * 2^23


@triton.jit
def two_atanh(s):
    z = s * s
    total = z * 0.0 + 1.0 / 19
    total = total * z + 1.0 / 17
    total = total * z + 1.0 / 15
    total = total * z + 1.0 / 13
    total = total * z + 1.0 / 11
    total = total * z + 1.0 / 9
    total = total * z + 1.0 / 7
    total = total * z + 1.0 / 5
    total = total * z + 1.0 / 3
    return 2.0 * (s + s * (z * total))


@triton.jit
def log(x):
    """Of positive, finite, normal float64."""
    bits = x.to(tl.int64, bitcast=True)
    e = ((bits >> 52) - 1022).to(tl.float64)
    m = ((bits & 0x000FFFFFFFFFFFFF) | 0x3FE0000000000000).to(tl.float64, bitcast=True)
    low = m < _SQRT_HALF
    m = tl.where(low, m + m, m)
    e = tl.where(low, e - 1.0, e)
    return e * _LN2 + two_atanh((m - 1.0) / (m + 1.0))


@triton.jit
def log1p_neg(u):
    """log(1 - u) of float64 u in [0, 1)."""
    w = 1.0 - u
    return tl.where(w > _SQRT_HALF, two_atanh(-u / (2.0 - u)), log(w))


@triton.jit
def exp(x):
    """Of float64 x <= 709; 0 below -708 and for NaN."""
    tiny = (x >= -708.0) == 0
    x = tl.where(tiny, 0.0, x)
    n = (x * (1.0 / 0.6931471805599453) + _MAGIC64) - _MAGIC64
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    total = r * 0.0 + 1.6059043836821616e-10
    total = total * r + 2.08767569878681e-09
    total = total * r + 2.505210838544172e-08
    total = total * r + 2.7557319223985894e-07
    total = total * r + 2.7557319223985893e-06
    total = total * r + 2.48015873015873e-05
    total = total * r + 0.0001984126984126984
    total = total * r + 0.001388888888888889
    total = total * r + 0.008333333333333333
    total = total * r + 0.041666666666666664
    total = total * r + 0.16666666666666666
    total = total * r + 0.5
    total = total * r + 1.0
    total = total * r + 1.0
    scale = ((n.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)
    return tl.where(tiny, 0.0, total * scale)


@triton.jit
def exp_float32(x):
    """Of float32 x <= 0; 0 below -87 and for NaN."""
    tiny = (x >= -87.0) == 0
    x = tl.where(tiny, 0.0, x)
    n = (x * 1.44269504 + _MAGIC32) - _MAGIC32
    r = (x - n * 0.693359375) - n * -2.12194440e-4
    total = r * 0.0 + 1.9875691500e-4
    total = total * r + 1.3981999507e-3
    total = total * r + 8.3334519073e-3
    total = total * r + 4.1665795894e-2
    total = total * r + 1.6666665459e-1
    total = total * r + 5.0000001201e-1
    total = (total * (r * r) + r) + 1.0
    scale = ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(tiny, 0.0, total * scale)


@triton.jit
def sortable(x):
    """float32 as int64 in the same order, 0 and -0 equal, so that bisection ends after at most 32 steps."""
    bits = (x + 0.0).to(tl.int32, bitcast=True).to(tl.int64)
    return tl.where(bits < 0, -2147483649 - bits, bits)


@triton.jit
def fold(parts):
    """The total of sixteen partial sums, folded in halves: part i and part i + 8 first."""
    parts = tl.reshape(parts, [2, 8])
    parts = tl.sum(parts, axis=0)
    parts = tl.sum(tl.reshape(parts, [2, 4]), axis=0)
    parts = tl.sum(tl.reshape(parts, [2, 2]), axis=0)
    return tl.sum(parts, axis=0)


@triton.jit
def as_float32(x):
    """Of float16, bfloat16 or float32; a bfloat16 by its bits, because the interpreter's conversion loses subnormals."""
    if x.dtype == tl.bfloat16:
        return (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(tl.float32)


@triton.jit
def round_bfloat16(x, BFLOAT16: tl.constexpr):
    """float32 rounded to bfloat16, half to even, and back; unchanged if not BFLOAT16. NaN stays NaN."""
    if BFLOAT16:
        bits = x.to(tl.uint32, bitcast=True)
        high = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        x = tl.where(x == x, high.to(tl.float32, bitcast=True), x)
    return x


@triton.jit
def round_even(x):
    """float32 of magnitude below 2^22 to the nearest integer, half to even."""
    return (x + _MAGIC32) - _MAGIC32


@triton.jit
def largest_magnitude(x):
    """Of a row of float32; NaN if there is one."""
    high = tl.max(tl.where(x == x, tl.abs(x), 0.0), axis=0)
    return tl.where(tl.max((x != x).to(tl.int32), axis=0) > 0, float("nan"), high)
