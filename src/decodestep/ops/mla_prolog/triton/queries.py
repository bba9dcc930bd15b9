"""What follows the product by weight_uq_qr: the absorbed queries, their rotated parts, and both in int8."""

from __future__ import annotations

import triton
import triton.language as tl

from decodestep._base.triton_overlap import let_next_start, wait_for_last
from decodestep.ops.mla_prolog.triton.products import add_parts, add_product, as_bfloat16, store_rounded
from decodestep.ops.mla_prolog.triton.quantising import in_bytes, in_float8
from decodestep.ops.mla_prolog.triton.rows import load_angles, load_float32, rotate

TURNED = tl.constexpr(16)  # tokens of a program: more take registers that others need to start early


@triton.jit
def finish_queries(
    q, row, item, size, x_scale, w_scale, sin, cos, w, query, query_rope, tokens, heads, nope, latent, rope,
    w_head, w_row, w_item,
    PARTS: tl.constexpr, SCALED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    HALF: tl.constexpr, BFLOAT16: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """For a tile of tokens and a head: by programs of axis 2 columns of the absorbed query, and by its last ones, which have no
    weights to fetch while the product before still runs, the rotation of TURNED tokens.
    """
    let_next_start(OVERLAPS)
    first_token, head = tl.program_id(0).to(tl.int64) * ROWS, tl.program_id(1).to(tl.int64)
    absorbing = tl.num_programs(2) - ROWS // TURNED
    if tl.program_id(2) >= absorbing:
        turned = first_token + (tl.program_id(2) - absorbing) * TURNED + tl.arange(0, TURNED)
        turn(
            q, row, item, size, x_scale, w_scale, sin, cos, query_rope, turned, head, tokens, heads, nope, rope, PARTS, SCALED,
            HALF, BFLOAT16, OVERLAPS,
        )  # fmt: skip
    else:
        first = head * (nope + rope)
        t = first_token + tl.arange(0, ROWS)
        column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
        absorb(
            q, row, item, size, x_scale, w_scale, w + head * w_head, query + head * latent, t, first, column, tokens, heads,
            nope, latent, w_row, w_item, PARTS, SCALED, ROWS, COLUMNS, DEPTH, BFLOAT16, OVERLAPS,
        )  # fmt: skip


@triton.jit
def absorb(
    q, row, item, size, x_scale, w_scale, w, query, t, first, column, tokens, heads, nope, latent, w_row, w_item,
    PARTS: tl.constexpr, SCALED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    BFLOAT16: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """first: where the head begins in a row of q."""
    is_row, is_column = t < tokens, column < latent
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    for begin in range(0, nope, DEPTH):
        d = begin + tl.arange(0, DEPTH)
        is_input = d < nope
        at = d[:, None].to(tl.int64) * w_row + column[None, :].to(tl.int64) * w_item
        b = tl.load(w + at, mask=is_input[:, None] & is_column[None, :], other=0.0)
        wait_for_last(OVERLAPS)
        n, is_t, is_n = (first + d)[None, :], is_row[:, None], is_input[None, :]
        if PARTS == 1 and not SCALED and q.dtype.element_ty == w.dtype.element_ty:  # complete: straight to the tensor cores
            a = tl.load(q + t[:, None] * row + n * item, mask=is_t & is_n, other=0.0)
        else:
            a = add_parts(q, row, item, size, x_scale, w_scale, t[:, None], n, is_t, is_n, PARTS, SCALED, BFLOAT16)
            a = as_bfloat16(a) if BFLOAT16 else a
        total = add_product(total, a, b)
    at = (t * heads * latent)[None, :] + column[:, None]
    store_rounded(query + at, total, is_row[None, :] & is_column[:, None])


@triton.jit
def turn(
    q, row, item, size, x_scale, w_scale, sin, cos, query_rope, t, head, tokens, heads, nope, rope,
    PARTS: tl.constexpr, SCALED: tl.constexpr, HALF: tl.constexpr, BFLOAT16: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """The rotated part of a head."""
    j, half = tl.arange(0, HALF), rope // 2
    is_row, is_pair = (t < tokens)[:, None], (j < half)[None, :]
    is_here = is_row & is_pair
    t, n = t[:, None], (head * (nope + rope) + nope + 2 * j)[None, :]
    low_cos, high_cos, low_sin, high_sin = load_angles(sin, cos, t * rope + j[None, :], half, is_here)
    wait_for_last(OVERLAPS)
    even = add_parts(q, row, item, size, x_scale, w_scale, t, n, is_row, is_pair, PARTS, SCALED, BFLOAT16)
    odd = add_parts(q, row, item, size, x_scale, w_scale, t, n + 1, is_row, is_pair, PARTS, SCALED, BFLOAT16)
    low, high = rotate(even, odd, low_cos, high_cos, low_sin, high_sin, BFLOAT16)
    at = (t * heads + head) * rope + j[None, :]
    store_rounded(query_rope + at, low, is_here)
    store_rounded(query_rope + at + half, high, is_here)


@triton.jit
def quantise_heads(
    query, out, out_scale, query_rope, kv_scale, latent, rope,
    AWAY: tl.constexpr, WIDTH: tl.constexpr, ROPE: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """A head's query as int8 or, by its bits, float8, its scale, and query_rope in units of it, in place."""
    wait_for_last(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    at, j = tl.arange(0, WIDTH), tl.arange(0, ROPE)
    wide = load_float32(query + row * latent + at, at < latent)
    if out.dtype.element_ty == tl.uint8:
        q, scale = in_float8(wide, WIDTH)
    else:
        q, scale = in_bytes(wide, AWAY, WIDTH)
    tl.store(out + row * latent + at, q.to(out.dtype.element_ty), mask=at < latent)
    tl.store(out_scale + row, scale)
    x = load_float32(query_rope + row * rope + j, j < rope)
    divisor = tl.zeros([ROPE], tl.float32) + scale
    scaled = tl.div_rn(x * tl.load(kv_scale), divisor)
    scaled = tl.where((divisor == 0.0) & (x == 0.0), 0.0, scaled)
    store_rounded(query_rope + row * rope + j, scaled, j < rope)
