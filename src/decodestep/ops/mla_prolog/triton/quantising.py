"""Rounding to int8 and to float8_e4m3fn, by rows, by tiles, by blocks and by given scales, as the specification does it."""

from __future__ import annotations

import triton
import triton.language as tl

from decodestep._base.triton import largest_magnitude, round_even
from decodestep._base.triton_float8 import float8_bits
from decodestep.ops.mla_prolog.scenarios import BLOCK

_SHARE = tl.constexpr(0.0022321429569274187)  # 1 / 448, rounded to float32
_LEAST_OF_TILE = tl.constexpr(9.999999747378752e-05)  # 1e-4 likewise: below it a tile's largest magnitude counts as this
_BLOCK = tl.constexpr(BLOCK)


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
    bound = largest_of_rows(tiles) * clip
    scale = tl.div_rn(bound, tl.zeros([LATENT // TILE], tl.float32) + 127.0)
    inverse = tl.where(scale == 0.0, scale, tl.div_rn(tl.zeros([LATENT // TILE], tl.float32) + 1.0, scale))
    clipped = tl.minimum(tl.maximum(tiles, -bound[:, None]), bound[:, None])
    clipped = tl.where(bound[:, None] == bound[:, None], clipped, float("nan"))
    return scale, tl.reshape(as_int8(clipped * inverse[:, None]), [LATENT])


@triton.jit
def in_float8(x, WIDTH: tl.constexpr):
    """(bits, scale) of a row."""
    scale = tl.zeros([WIDTH], tl.float32) + largest_magnitude(x) * _SHARE
    return float8_bits(tl.where(scale == 0.0, x, tl.div_rn(x, scale))), tl.max(scale, axis=0)


@triton.jit
def in_float8_tiles(x, LATENT: tl.constexpr, TILE: tl.constexpr):
    """(scales, bits) of tiles that each have a scale."""
    tiles = tl.reshape(x, [LATENT // TILE, TILE])
    largest = largest_of_rows(tiles)
    scale = tl.where(largest < _LEAST_OF_TILE, _LEAST_OF_TILE, largest) * _SHARE
    quotient = tl.div_rn(tiles, tl.broadcast_to(scale[:, None], [LATENT // TILE, TILE]))
    return scale, tl.reshape(float8_bits(quotient), [LATENT])


@triton.jit
def in_float8_blocks(x, WIDTH: tl.constexpr):
    """(exponents, bits) of blocks that each share a power of two, that of the largest magnitude less 8."""
    blocks = tl.reshape(x, [WIDTH // _BLOCK, _BLOCK])
    field = (largest_of_rows(blocks).to(tl.int32, bitcast=True) >> 23) & 255
    exponent = tl.maximum(field - 8, 0)
    factor = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    scaled = tl.where(field[:, None] == 0, 0.0, blocks) * factor[:, None]
    scaled = tl.where(field[:, None] == 255, float("nan"), scaled)
    return tl.where(field == 255, 255, exponent), tl.reshape(float8_bits(scaled), [WIDTH])


@triton.jit
def largest_of_rows(x):
    """The largest magnitude of each row; NaN where a row has one."""
    largest = tl.max(tl.where(x == x, tl.abs(x), 0.0), axis=1)
    return tl.where(tl.max((x != x).to(tl.int32), axis=1) > 0, float("nan"), largest)
