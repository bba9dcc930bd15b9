"""float8_e4m3fn and float8_e8m0fnu in Triton by their bits: not every GPU has the types, nor a zero of them the interpreter."""

# mypy: allow-untyped-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def float8_values(bits):
    """Of float8_e4m3fn by its bits, int32."""
    magnitude = bits & 0x7F
    normal = ((magnitude << 20) + (120 << 23)).to(tl.float32, bitcast=True)
    value = tl.where(magnitude < 8, magnitude.to(tl.float32) * 0.001953125, normal)
    value = tl.where(magnitude == 0x7F, float("nan"), value)
    return tl.where(bits & 0x80 != 0, -value, value)


@triton.jit
def float8_bits(x):
    """float32 to nearest, ties to even, saturating; NaN stays NaN. int32."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
    # Of a subnormal: adding 2^14 rounds at the last bit that the format keeps, 2^-9.
    small = (magnitude.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    rounded = tl.where(magnitude < 0x3C800000, small, normal)
    rounded = tl.where(magnitude >= 0x43E00000, 0x7E, rounded)
    rounded = tl.where(magnitude > 0x7F800000, 0x7F, rounded)
    return rounded | ((bits >> 24) & 0x80)


@triton.jit
def exponent_values(bits):
    """Of float8_e8m0fnu by its bits, int32: 2^(bits - 127), NaN for 255."""
    value = (bits << 23).to(tl.float32, bitcast=True)
    value = tl.where(bits == 0, 5.877471754111438e-39, value)
    return tl.where(bits == 255, float("nan"), value)
