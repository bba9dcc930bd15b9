"""Products of bfloat16 tiles in Triton, whose terms are exact in float32, and float32 tiles as sums of bfloat16 ones.

A bfloat16 keeps eight bits of a float32's 24: two pieces leave an error of 2^-18 of the value, three leave none.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from decodestep._base.devices import interpreted
from decodestep._base.triton import as_float32

_INTERPRETED = tl.constexpr(interpreted())  # the interpreter multiplies the bits of bfloat16 as integers


@triton.jit
def product(a, b, total):
    """total + a @ b, of bfloat16 tiles and a float32 total."""
    if _INTERPRETED:
        a, b = as_float32(a), as_float32(b)
    return tl.dot(a, b, total)


@triton.jit
def split_bfloat16(x):
    """float32 as a bfloat16 and the float32 that it lacks."""
    high = x.to(tl.bfloat16)
    return high, x - as_float32(high)
