"""Rounding to int8, by rows, by tiles and by given scales, as the specification does it."""

from __future__ import annotations

import triton
import triton.language as tl

from decodestep._base.triton import largest_magnitude, round_even


@triton.jit
def as_int8(x):
    """Rounded, half to even, and saturated; NaN gives 0. float32."""
    x = tl.where(x == x, x, 0.0)
    return round_even(tl.minimum(tl.maximum(x, -128.0), 127.0))


@triton.jit
def half_away(x, unit):
    whole = tl.floor(tl.abs(x) / unit + 0.5) * unit
    return tl.where(x < 0, -whole, whole)


@triton.jit
def as_int8_away(x):
    """By float16, both times half away from zero."""
    x = tl.minimum(tl.maximum(tl.where(x == x, x, 0.0), -1024.0), 1024.0)
    exponent = ((x.to(tl.int32, bitcast=True) >> 23) & 255) - 127
    unit = (tl.maximum(exponent - 10, -24) + 127) << 23
    x = half_away(half_away(x, unit.to(tl.float32, bitcast=True)), 1.0)
    return tl.minimum(tl.maximum(x, -128.0), 127.0)


@triton.jit
def in_bytes(x, AWAY: tl.constexpr, WIDTH: tl.constexpr):
    """(integers as float32, scale) of a row."""
    high = largest_magnitude(x)
    full = tl.zeros([WIDTH], tl.float32) + high
    z = x * tl.where(full == 0.0, full, tl.div_rn(tl.zeros([WIDTH], tl.float32) + 127.0, full))
    q = as_int8_away(z) if AWAY else as_int8(z)
    return q, tl.max(tl.div_rn(full, tl.zeros([WIDTH], tl.float32) + 127.0), axis=0)


@triton.jit
def in_tiles(x, clip, LATENT: tl.constexpr, TILE: tl.constexpr):
    """(scales, integers) of tiles that each have a scale."""
    tiles = tl.reshape(x, [LATENT // TILE, TILE])
    bound = tl.max(tl.where(tiles == tiles, tl.abs(tiles), 0.0), axis=1) * clip
    bound = tl.where(tl.max((tiles != tiles).to(tl.int32), axis=1) > 0, float("nan"), bound)
    scale = tl.div_rn(bound, tl.zeros([LATENT // TILE], tl.float32) + 127.0)
    inverse = tl.where(scale == 0.0, scale, tl.div_rn(tl.zeros([LATENT // TILE], tl.float32) + 1.0, scale))
    clipped = tl.minimum(tl.maximum(tiles, -bound[:, None]), bound[:, None])
    clipped = tl.where(bound[:, None] == bound[:, None], clipped, float("nan"))
    return scale, tl.reshape(as_int8(clipped * inverse[:, None]), [LATENT])
