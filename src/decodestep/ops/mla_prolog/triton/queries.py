"""What follows the product by weight_uq_qr: the absorbed queries, their rotated parts, and both in int8."""

from __future__ import annotations

import triton
import triton.language as tl

from decodestep.ops.mla_prolog.triton.products import add_parts, add_product, as_bfloat16, store_rounded
from decodestep.ops.mla_prolog.triton.quantising import in_bytes
from decodestep.ops.mla_prolog.triton.rows import load_float32, rotate


@triton.jit
def finish_queries(
    q, row, item, size, x_scale, w_scale, sin, cos, w, query, query_rope, tokens, heads, nope, latent, rope, groups,
    w_head, w_row, w_item,
    PARTS: tl.constexpr, SCALED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    HALF: tl.constexpr, BFLOAT16: tl.constexpr,
):  # fmt: skip
    """For a tile of tokens and a head: by the first program of axis 2 the rotation, by others columns of the absorbed query."""
    t = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1).to(tl.int64)
    if tl.program_id(2) == 0:
        turn(
            q, row, item, size, x_scale, w_scale, sin, cos, query_rope, t, head, tokens, heads, nope, rope, groups, PARTS,
            SCALED, HALF, BFLOAT16,
        )  # fmt: skip
    else:
        first = head * (nope + rope // groups)
        column = (tl.program_id(2) - 1) * COLUMNS + tl.arange(0, COLUMNS)
        absorb(
            q, row, item, size, x_scale, w_scale, w + head * w_head, query + head * latent, t, first, column, tokens, heads,
            nope, latent, w_row, w_item, PARTS, SCALED, ROWS, COLUMNS, DEPTH, BFLOAT16,
        )  # fmt: skip


@triton.jit
def absorb(
    q, row, item, size, x_scale, w_scale, w, query, t, first, column, tokens, heads, nope, latent, w_row, w_item,
    PARTS: tl.constexpr, SCALED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    BFLOAT16: tl.constexpr,
):  # fmt: skip
    """first: where the head begins in a row of q."""
    is_row, is_column = t < tokens, column < latent
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    for begin in range(0, nope, DEPTH):
        d = begin + tl.arange(0, DEPTH)
        is_input = d < nope
        at = d[:, None].to(tl.int64) * w_row + column[None, :].to(tl.int64) * w_item
        b = tl.load(w + at, mask=is_input[:, None] & is_column[None, :], other=0.0)
        mask = is_row[:, None] & is_input[None, :]
        a = add_parts(
            q, row, item, size, x_scale, w_scale, t[:, None], (first + d)[None, :], mask, PARTS, SCALED, BFLOAT16
        )  # fmt: skip
        a = as_bfloat16(a) if BFLOAT16 else a
        total = add_product(total, a, b)
    at = (t * heads * latent)[None, :] + column[:, None]
    store_rounded(query + at, total, is_row[None, :] & is_column[:, None])


@triton.jit
def turn(
    q, row, item, size, x_scale, w_scale, sin, cos, query_rope, t, head, tokens, heads, nope, rope, groups,
    PARTS: tl.constexpr, SCALED: tl.constexpr, HALF: tl.constexpr, BFLOAT16: tl.constexpr,
):  # fmt: skip
    """The rotated part of a head, whose columns outside of its group's are zeros."""
    j, half, width = tl.arange(0, HALF), rope // 2, rope // groups
    first = head // (heads // groups) * width
    is_here = (t < tokens)[:, None] & (j < half)[None, :]
    is_own = is_here & ((2 * j >= first) & (2 * j < first + width))[None, :]
    t, n = t[:, None], (head * (nope + width) + nope + 2 * j - first)[None, :]
    even = add_parts(q, row, item, size, x_scale, w_scale, t, n, is_own, PARTS, SCALED, BFLOAT16)
    odd = add_parts(q, row, item, size, x_scale, w_scale, t, n + 1, is_own, PARTS, SCALED, BFLOAT16)
    low, high = rotate(even, odd, sin, cos, t * rope + j[None, :], half, is_here, BFLOAT16)
    at = (t * heads + head) * rope + j[None, :]
    store_rounded(query_rope + at, low, is_here)
    store_rounded(query_rope + at + half, high, is_here)


@triton.jit
def quantise_heads(
    query, out, out_scale, query_rope, kv_scale, latent, rope,
    AWAY: tl.constexpr, WIDTH: tl.constexpr, ROPE: tl.constexpr,
):  # fmt: skip
    """A head's query as int8, its scale, and query_rope in units of it, in place."""
    row = tl.program_id(0).to(tl.int64)
    at, j = tl.arange(0, WIDTH), tl.arange(0, ROPE)
    q, scale = in_bytes(load_float32(query + row * latent + at, at < latent), AWAY, WIDTH)
    tl.store(out + row * latent + at, q.to(tl.int8), mask=at < latent)
    tl.store(out_scale + row, scale)
    x = load_float32(query_rope + row * rope + j, j < rope)
    divisor = tl.zeros([ROPE], tl.float32) + scale
    scaled = tl.div_rn(x * tl.load(kv_scale), divisor)
    scaled = tl.where((divisor == 0.0) & (x == 0.0), 0.0, scaled)
    store_rounded(query_rope + row * rope + j, scaled, j < rope)
