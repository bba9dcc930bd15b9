"""The kernels of mla_prolog, each a stage of the specification."""

from __future__ import annotations

import triton
import triton.language as tl

from decodestep._base.triton import as_float32, largest_magnitude, round_bfloat16, round_even
from decodestep.ops.mla_prolog.problem import CACHE_SCALES

_PLAIN, _BY_CHANNEL, _BY_TILE = (tl.constexpr(CACHE_SCALES[kind]) for kind in (None, "channel", "tile"))


@triton.jit
def multiply(
    x, w, out, row_scale, column_scale, rows, depth, columns, x_row, x_item, w_row, w_item,
    NZ: tl.constexpr, INT8: tl.constexpr, PRECISION: tl.constexpr, ROUND: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = t < rows, n < columns
    total = tl.zeros([ROWS, COLUMNS], tl.int32 if INT8 else tl.float32)
    for first in range(0, depth, DEPTH):
        k = first + tl.arange(0, DEPTH).to(tl.int64)
        is_input = k < depth
        a = tl.load(x + t[:, None] * x_row + k[None, :] * x_item, mask=is_row[:, None] & is_input[None, :], other=0)
        at = k[:, None] * w_row + n[None, :] * w_item
        if NZ:  # w_row is then the number of elements of a fractal column
            at = (n // NZ * w_row + n % NZ)[None, :] + k[:, None] * NZ
        b = tl.load(w + at, mask=is_input[:, None] & is_column[None, :], other=0)
        if INT8:
            total = tl.dot(a, b, total, out_dtype=tl.int32)
        else:
            total = tl.dot(as_float32(a), as_float32(b), total, input_precision=PRECISION)
    result = total.to(tl.float32)
    if INT8:
        result = result * tl.load(row_scale + t, mask=is_row, other=0.0)[:, None]
        result = result * tl.load(column_scale + n, mask=is_column, other=0.0)[None, :]
    tl.store(out + t[:, None] * columns + n[None, :], round_bfloat16(result, ROUND), mask=is_row[:, None] & is_column[None, :])


@triton.jit
def normalise(x, gamma, width, share, epsilon, alpha, HAS_GAMMA: tl.constexpr, WIDTH: tl.constexpr):
    """rms_norm of a row, times alpha; share is 1 / width."""
    at = tl.arange(0, WIDTH)
    if HAS_GAMMA:
        rms = tl.sqrt_rn(tl.sum(x * x, axis=0) * share + epsilon)
        factor = as_float32(tl.load(gamma + at, mask=at < width, other=0.0))
        x = tl.div_rn(x, tl.zeros([WIDTH], tl.float32) + rms) * factor
    return x * alpha


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
def norm_rows(
    raw, row, item, gamma, smooth, out, out_scale, width, share, epsilon, alpha,
    HAS_GAMMA: tl.constexpr, HAS_SMOOTH: tl.constexpr, INT8: tl.constexpr, WIDTH: tl.constexpr, BFLOAT16: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, WIDTH)
    x = as_float32(tl.load(raw + t * row + at * item, mask=at < width, other=0.0))
    x = normalise(x, gamma, width, share, epsilon, alpha, HAS_GAMMA, WIDTH)
    if INT8:
        if HAS_SMOOTH:
            x = x * tl.load(smooth + at, mask=at < width, other=0.0)
        q, scale = in_bytes(x, False, WIDTH)
        tl.store(out + t * width + at, q.to(tl.int8), mask=at < width)
        tl.store(out_scale + t, scale)
    else:
        tl.store(out + t * width + at, round_bfloat16(x, BFLOAT16), mask=at < width)


@triton.jit
def rotate(x, sin, cos, first, last, half, HALF: tl.constexpr, BFLOAT16: tl.constexpr):
    """The rotated pairs as two halves, of a vector whose elements [first, last) lie at x, and which is 0 elsewhere."""
    j = tl.arange(0, HALF)
    mine = (j < half) & (2 * j >= first) & (2 * j < last)
    even = tl.load(x + 2 * j - first, mask=mine, other=0.0)
    odd = tl.load(x + 2 * j + 1 - first, mask=mine, other=0.0)
    low_cos, high_cos = load_half(cos, j, half), load_half(cos + half, j, half)
    low_sin, high_sin = load_half(sin, j, half), load_half(sin + half, j, half)
    return round_bfloat16(even * low_cos - odd * low_sin, BFLOAT16), round_bfloat16(odd * high_cos + even * high_sin, BFLOAT16)


@triton.jit
def load_half(values, j, half):
    return as_float32(tl.load(values + j, mask=j < half, other=0.0))


@triton.jit
def turn_queries(q, sin, cos, out, heads, nope, rope, groups, HALF: tl.constexpr, BFLOAT16: tl.constexpr):
    t, n = tl.program_id(0).to(tl.int64), tl.program_id(1)
    width = rope // groups
    first = n // (heads // groups) * width
    x = q + (t * heads + n) * (nope + width) + nope
    low, high = rotate(x, sin + t * rope, cos + t * rope, first, first + width, rope // 2, HALF, BFLOAT16)
    j = tl.arange(0, HALF)
    out += (t * heads + n) * rope
    tl.store(out + j, low, mask=j < rope // 2)
    tl.store(out + rope // 2 + j, high, mask=j < rope // 2)


@triton.jit
def absorb(
    q, w, out, tokens, heads, nope, latent, q_row, q_head, w_head, w_row, w_item,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, BFLOAT16: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0).to(tl.int64)
    t = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = t < tokens, column < latent
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, nope, DEPTH):
        d = first + tl.arange(0, DEPTH)
        is_input = d < nope
        at = (t * q_row + head * q_head)[:, None] + d[None, :]
        a = tl.load(q + at, mask=is_row[:, None] & is_input[None, :], other=0.0)
        at = head * w_head + d[:, None].to(tl.int64) * w_row + column[None, :] * w_item
        b = as_float32(tl.load(w + at, mask=is_input[:, None] & is_column[None, :], other=0.0))
        total = tl.dot(round_bfloat16(a, BFLOAT16), b, total, input_precision="tf32" if BFLOAT16 else "ieee")
    at = ((t * heads + head) * latent)[:, None] + column[None, :]
    tl.store(out + at, round_bfloat16(total, BFLOAT16), mask=is_row[:, None] & is_column[None, :])


@triton.jit
def quantise_heads(
    query, out, out_scale, query_rope, kv_scale, latent, rope,
    AWAY: tl.constexpr, WIDTH: tl.constexpr, ROPE: tl.constexpr, BFLOAT16: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at, j = tl.arange(0, WIDTH), tl.arange(0, ROPE)
    q, scale = in_bytes(tl.load(query + row * latent + at, mask=at < latent, other=0.0), AWAY, WIDTH)
    tl.store(out + row * latent + at, q.to(tl.int8), mask=at < latent)
    tl.store(out_scale + row, scale)
    x = tl.load(query_rope + row * rope + j, mask=j < rope, other=0.0)
    divisor = tl.zeros([ROPE], tl.float32) + scale
    scaled = tl.div_rn(x * tl.load(kv_scale), divisor)
    scaled = tl.where((divisor == 0.0) & (x == 0.0), 0.0, scaled)
    tl.store(query_rope + row * rope + j, round_bfloat16(scaled, BFLOAT16), mask=j < rope)


@triton.jit
def place(block, offset, h, block_size, width, by_block, by_row, by_item, NZ: tl.constexpr):
    """Where value h of a row of a cache lies."""
    if NZ:
        inside = h // NZ * (block_size * NZ) + offset * NZ + h % NZ
        at = inside // width * by_row + inside % width * by_item
    else:
        at = offset * by_row + h * by_item
    return block * by_block + at


@triton.jit
def store_real(cache, at, x, mask, BFLOAT16: tl.constexpr):
    """Rounded values; a cache of bfloat16 is one of their bits."""
    if BFLOAT16:
        tl.store(cache + at, (x.to(tl.int32, bitcast=True) >> 16).to(tl.int16), mask=mask)
    else:
        tl.store(cache + at, x, mask=mask)


@triton.jit
def write_rows(
    rows, gamma, sin, cos, slots, kv, kr, kv_scale, kr_scale, latent, rope, share, epsilon, alpha, blocks, block_size,
    kv_block, kv_row, kv_item, kr_block, kr_row, kr_item,
    KIND: tl.constexpr, HAS_GAMMA: tl.constexpr, KV_NZ: tl.constexpr, KR_NZ: tl.constexpr,
    LATENT: tl.constexpr, HALF: tl.constexpr, TILE: tl.constexpr, BFLOAT16: tl.constexpr,
):  # fmt: skip
    """KIND: of `CACHE_SCALES`."""
    t = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + t)
    block, offset = slot // block_size, slot % block_size
    if (slot >= 0) & (block < blocks):
        rows += t * (latent + rope)
        h, j = tl.arange(0, LATENT).to(tl.int64), tl.arange(0, HALF).to(tl.int64)
        here, half = h < latent, rope // 2
        x = tl.load(rows + h, mask=here, other=0.0)
        x = normalise(x, gamma, latent, share, epsilon, alpha, HAS_GAMMA, LATENT)
        low, high = rotate(rows + latent, sin + t * rope, cos + t * rope, 0, rope, half, HALF, BFLOAT16)
        if KIND == _BY_TILE:
            at = block * kv_block + offset * kv_row
            bound, q = in_tiles(x, tl.load(kv_scale), LATENT, TILE)
            tl.store(kv + at + h * kv_item, q.to(tl.int8), mask=here)
            store_bytes(kv + at + latent * kv_item, j, low, j < half, kv_item, True)
            store_bytes(kv + at + (latent + rope) * kv_item, j, high, j < half, kv_item, True)
            n = tl.arange(0, LATENT // TILE).to(tl.int64)
            store_bytes(kv + at + (latent + 2 * rope) * kv_item, n, bound, n < latent // TILE, kv_item, False)
        else:
            at = place(block, offset, h, block_size, latent, kv_block, kv_row, kv_item, KV_NZ)
            if KIND == _PLAIN:
                store_real(kv, at, round_bfloat16(x, BFLOAT16), here, BFLOAT16)
            elif KIND == _BY_CHANNEL:
                tl.store(kv + at, as_int8(x * tl.load(kv_scale + h, mask=here, other=0.0)).to(tl.int8), mask=here)
            else:
                tl.store(kv + at, as_int8(x * tl.load(kv_scale)).to(tl.int8), mask=here)
            first = place(block, offset, j, block_size, rope, kr_block, kr_row, kr_item, KR_NZ)
            second = place(block, offset, half + j, block_size, rope, kr_block, kr_row, kr_item, KR_NZ)
            if KIND == _BY_CHANNEL:
                low_scale = tl.load(kr_scale + j, mask=j < half, other=0.0)
                high_scale = tl.load(kr_scale + half + j, mask=j < half, other=0.0)
                tl.store(kr + first, as_int8(low * low_scale).to(tl.int8), mask=j < half)
                tl.store(kr + second, as_int8(high * high_scale).to(tl.int8), mask=j < half)
            else:
                store_real(kr, first, low, j < half, BFLOAT16)
                store_real(kr, second, high, j < half, BFLOAT16)


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


@triton.jit
def store_bytes(cache, i, x, mask, item, HALVES: tl.constexpr):
    """Values i as little-endian bytes: the upper two of a bfloat16's float32, or all four."""
    bits = x.to(tl.int32, bitcast=True)
    if HALVES:
        tl.store(cache + 2 * i * item, (bits >> 16).to(tl.int8), mask=mask)
        tl.store(cache + (2 * i + 1) * item, (bits >> 24).to(tl.int8), mask=mask)
    else:
        tl.store(cache + 4 * i * item, bits.to(tl.int8), mask=mask)
        tl.store(cache + (4 * i + 1) * item, (bits >> 8).to(tl.int8), mask=mask)
        tl.store(cache + (4 * i + 2) * item, (bits >> 16).to(tl.int8), mask=mask)
        tl.store(cache + (4 * i + 3) * item, (bits >> 24).to(tl.int8), mask=mask)
