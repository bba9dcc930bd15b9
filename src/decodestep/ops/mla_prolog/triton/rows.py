"""What comes between the products: a token's normed compressed query, and its rows of both caches."""

from __future__ import annotations

import triton
import triton.language as tl

from decodestep._base.triton import as_float32, round_bfloat16
from decodestep._base.triton_float8 import float8_bits
from decodestep._base.triton_overlap import let_next_start, wait_for_last
from decodestep.ops.mla_prolog.problem import CACHE_SCALES
from decodestep.ops.mla_prolog.scenarios import BLOCK
from decodestep.ops.mla_prolog.triton.products import add_parts, store_rounded
from decodestep.ops.mla_prolog.triton.quantising import (
    as_int8,
    in_bytes,
    in_float8,
    in_float8_blocks,
    in_float8_tiles,
    in_tiles,
)

_PLAIN, _BY_CHANNEL, _BY_TILE = (tl.constexpr(CACHE_SCALES[kind]) for kind in (None, "channel", "tile"))
_BLOCK = tl.constexpr(BLOCK)
_SLOTS = tl.constexpr(256)  # that a program compares with its own at a time


@triton.jit
def finish_rows(
    raw, raw_row, raw_item, raw_size, raw_x_scale, raw_w_scale, gamma_cq, smooth, cq, cq_scale, width, share_cq, epsilon_cq,
    alpha_cq,
    rows, row, item, size, x_scale, w_scale, gamma_ckv, sin, cos, slots, kv, kr, kv_scale, kr_scale, tokens, latent, rope,
    share_ckv, epsilon_ckv, alpha_ckv, blocks, block_size, kv_block, kv_row, kv_item, kr_block, kr_row, kr_item,
    RAW_PARTS: tl.constexpr, RAW_SCALED: tl.constexpr, HAS_SMOOTH: tl.constexpr,
    WIDTH: tl.constexpr, PARTS: tl.constexpr, SCALED: tl.constexpr, KIND: tl.constexpr,
    KV_NZ: tl.constexpr, KR_NZ: tl.constexpr, LATENT: tl.constexpr, HALF: tl.constexpr, TILE: tl.constexpr,
    BFLOAT16: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """For token program_id(0): its compressed query, or by the second program of axis 1 its rows of the caches.

    What does not come from the products is read before they are complete.
    """
    let_next_start(OVERLAPS)
    t = tl.program_id(0).to(tl.int64)
    if tl.program_id(1) == 0:
        norm_query(
            raw, raw_row, raw_item, raw_size, raw_x_scale, raw_w_scale, gamma_cq, smooth, cq, cq_scale, t, width, share_cq,
            epsilon_cq, alpha_cq, RAW_PARTS, RAW_SCALED, HAS_SMOOTH, WIDTH, BFLOAT16, OVERLAPS,
        )  # fmt: skip
    else:
        write_rows(
            rows, row, item, size, x_scale, w_scale, gamma_ckv, sin, cos, slots, kv, kr, kv_scale, kr_scale, t, tokens, latent,
            rope, share_ckv, epsilon_ckv, alpha_ckv, blocks, block_size, kv_block, kv_row, kv_item, kr_block, kr_row, kr_item,
            PARTS, SCALED, KIND, KV_NZ, KR_NZ, LATENT, HALF, TILE, BFLOAT16, OVERLAPS,
        )  # fmt: skip


@triton.jit
def norm_query(
    raw, row, item, size, x_scale, w_scale, gamma, smooth, cq, cq_scale, t, width, share, epsilon, alpha,
    PARTS: tl.constexpr, SCALED: tl.constexpr, HAS_SMOOTH: tl.constexpr, WIDTH: tl.constexpr, BFLOAT16: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """The compressed query as weight_uq_qr multiplies it."""
    at = tl.arange(0, WIDTH)
    here = at < width
    factor = load_float32(gamma + at, here)
    smoothing = tl.load(smooth + at, mask=here & HAS_SMOOTH, other=0.0)
    wait_for_last(OVERLAPS)
    x = add_parts(raw, row, item, size, x_scale, w_scale, t, at, True, here, PARTS, SCALED, BFLOAT16)
    x = normalise(x, factor, share, epsilon, alpha, WIDTH)
    if cq.dtype.element_ty == tl.int8:
        if HAS_SMOOTH:
            x = x * smoothing
        q, scale = in_bytes(x, False, WIDTH)
        tl.store(cq + t * width + at, q.to(tl.int8), mask=here)
        tl.store(cq_scale + t, scale)
    elif cq_scale.dtype.element_ty == tl.uint8:
        exponent, q = in_float8_blocks(round_bfloat16(x, BFLOAT16), WIDTH)
        tl.store(cq + t * width + at, q.to(tl.uint8), mask=here)
        block, blocks = tl.arange(0, WIDTH // _BLOCK), width // _BLOCK
        tl.store(cq_scale + t * blocks + block, exponent.to(tl.uint8), mask=block < blocks)
    elif cq.dtype.element_ty == tl.uint8:
        if HAS_SMOOTH:
            x = x * smoothing
        q, scale = in_float8(x, WIDTH)
        tl.store(cq + t * width + at, q.to(tl.uint8), mask=here)
        tl.store(cq_scale + t, scale)
    else:
        store_rounded(cq + t * width + at, x, here)


@triton.jit
def normalise(x, factor, share, epsilon, alpha, WIDTH: tl.constexpr):
    """rms_norm of a row, times alpha; share is 1 / width."""
    rms = tl.sqrt_rn(tl.sum(x * x, axis=0) * share + epsilon)
    return tl.div_rn(x, tl.zeros([WIDTH], tl.float32) + rms) * factor * alpha


@triton.jit
def write_rows(
    rows, row, item, size, x_scale, w_scale, gamma, sin, cos, slots, kv, kr, kv_scale, kr_scale, t, tokens, latent, rope, share,
    epsilon, alpha, blocks, block_size, kv_block, kv_row, kv_item, kr_block, kr_row, kr_item,
    PARTS: tl.constexpr, SCALED: tl.constexpr, KIND: tl.constexpr, KV_NZ: tl.constexpr, KR_NZ: tl.constexpr,
    LATENT: tl.constexpr, HALF: tl.constexpr, TILE: tl.constexpr, BFLOAT16: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """The rows of both caches. KIND: of `CACHE_SCALES`."""
    slot = tl.load(slots + t)
    block, offset = slot // block_size, slot % block_size
    is_kept = (slot >= 0) & (block < blocks) & is_last(slots, slot, t, tokens)
    h, j = tl.arange(0, LATENT).to(tl.int64), tl.arange(0, HALF).to(tl.int64)
    here, half = h < latent, rope // 2
    factor = load_float32(gamma + h, here)
    low_cos, high_cos, low_sin, high_sin = load_angles(sin, cos, t * rope + j, half, j < half)
    wait_for_last(OVERLAPS)
    if is_kept:
        x = add_parts(rows, row, item, size, x_scale, w_scale, t, h, True, here, PARTS, SCALED, BFLOAT16)
        x = normalise(x, factor, share, epsilon, alpha, LATENT)
        n = latent + 2 * j
        even = add_parts(rows, row, item, size, x_scale, w_scale, t, n, True, j < half, PARTS, SCALED, BFLOAT16)
        odd = add_parts(rows, row, item, size, x_scale, w_scale, t, n + 1, True, j < half, PARTS, SCALED, BFLOAT16)
        low, high = rotate(even, odd, low_cos, high_cos, low_sin, high_sin, BFLOAT16)
        if KIND == _BY_TILE:
            at = block * kv_block + offset * kv_row
            if kv.dtype.element_ty == tl.uint8:
                bound, q = in_float8_tiles(x, LATENT, TILE)
            else:
                bound, q = in_tiles(x, tl.load(kv_scale), LATENT, TILE)
            tl.store(kv + at + h * kv_item, q.to(kv.dtype.element_ty), mask=here)
            store_bytes(kv + at + latent * kv_item, j, low, j < half, kv_item, True)
            store_bytes(kv + at + (latent + rope) * kv_item, j, high, j < half, kv_item, True)
            n = tl.arange(0, LATENT // TILE).to(tl.int64)
            store_bytes(kv + at + (latent + 2 * rope) * kv_item, n, bound, n < latent // TILE, kv_item, False)
        else:
            at = place(block, offset, h, block_size, latent, kv_block, kv_row, kv_item, KV_NZ)
            if KIND == _PLAIN:
                store_rounded(kv + at, x, here)
            elif KIND == _BY_CHANNEL:
                tl.store(kv + at, as_int8(x * tl.load(kv_scale + h, mask=here, other=0.0)).to(tl.int8), mask=here)
            elif kv.dtype.element_ty == tl.uint8:
                tl.store(kv + at, float8_bits(x * tl.load(kv_scale)).to(tl.uint8), mask=here)
            else:
                tl.store(kv + at, as_int8(x * tl.load(kv_scale)).to(tl.int8), mask=here)
            lower = place(block, offset, j, block_size, rope, kr_block, kr_row, kr_item, KR_NZ)
            upper = place(block, offset, half + j, block_size, rope, kr_block, kr_row, kr_item, KR_NZ)
            if KIND == _BY_CHANNEL:
                low_scale = tl.load(kr_scale + j, mask=j < half, other=0.0)
                high_scale = tl.load(kr_scale + half + j, mask=j < half, other=0.0)
                tl.store(kr + lower, as_int8(low * low_scale).to(tl.int8), mask=j < half)
                tl.store(kr + upper, as_int8(high * high_scale).to(tl.int8), mask=j < half)
            else:
                store_rounded(kr + lower, low, j < half)
                store_rounded(kr + upper, high, j < half)


@triton.jit
def is_last(slots, slot, t, tokens):
    """Whether no token after t has its slot: of several the last is kept."""
    later = tl.zeros([_SLOTS], tl.int32)
    for first in range(0, tokens, _SLOTS):
        other = first + tl.arange(0, _SLOTS)
        same = tl.load(slots + other, mask=other < tokens, other=-1) == slot
        later |= (same & (other > t)).to(tl.int32)
    return tl.max(later, axis=0) == 0


@triton.jit
def load_angles(sin, cos, at, half, mask):
    """What `rotate` takes; at: where the first half's angles lie."""
    low_cos, high_cos = load_float32(cos + at, mask), load_float32(cos + at + half, mask)
    low_sin, high_sin = load_float32(sin + at, mask), load_float32(sin + at + half, mask)
    return low_cos, high_cos, low_sin, high_sin


@triton.jit
def rotate(even, odd, low_cos, high_cos, low_sin, high_sin, BFLOAT16: tl.constexpr):
    """The rotated pairs as two halves."""
    return round_bfloat16(even * low_cos - odd * low_sin, BFLOAT16), round_bfloat16(odd * high_cos + even * high_sin, BFLOAT16)


@triton.jit
def load_float32(values, mask):
    return as_float32(tl.load(values, mask=mask, other=0.0))


@triton.jit
def place(block, offset, h, block_size, width, by_block, by_row, by_item, NZ: tl.constexpr):
    """Where value h of a row of a cache lies."""
    if NZ:
        inside = place_in_nz(offset, h, block_size, NZ)
        at = inside // width * by_row + inside % width * by_item
    else:
        at = offset * by_row + h * by_item
    return block * by_block + at


@triton.jit
def place_in_nz(offset, h, block_size, NZ: tl.constexpr):
    """Which element of a block in NZ order value h of a row is."""
    return h // NZ * (block_size * NZ) + offset * NZ + h % NZ


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
