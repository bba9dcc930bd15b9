"""Products of tiles in Triton, of bfloat16 with terms that are exact in float32, and float32 tiles as sums of bfloat16 ones.

A bfloat16 keeps eight bits of a float32's 24: two pieces leave an error of 2^-18 of the value, three leave none.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from decodestep._base.devices import interpreted
from decodestep._base.triton import as_float32

INTERPRETED = tl.constexpr(interpreted())


@triton.jit
def product(a, b, total):
    """total + a @ b, of bfloat16 or float32 tiles and a float32 total."""
    if INTERPRETED:  # the interpreter multiplies the bits of bfloat16 as integers
        a, b = as_float32(a), as_float32(b)
    return tl.dot(a, b, total, input_precision="ieee")


@triton.jit
def split_bfloat16(x):
    """float32 as a bfloat16 and the float32 that it lacks."""
    high = x.to(tl.bfloat16)
    return high, x - as_float32(high)


@triton.jit
def truncate_bfloat16(x):
    """float32 cut after the bits that bfloat16 has, and what it lacks; both float32, and infinity lacks nothing. What is left
    after two cuts is a bfloat16."""
    high = (x.to(tl.uint32, bitcast=True) & 0xFFFF0000).to(tl.float32, bitcast=True)
    return high, tl.where(tl.abs(x) == float("inf"), 0.0, x - high)
