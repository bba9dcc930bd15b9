"""The call into the native core."""

from __future__ import annotations

import numpy as np

from decodestep import _native
from decodestep._base.arrays import bits, contiguous
from decodestep._base.threads import threads
from decodestep.ops.linear.cpu import linear
from decodestep.ops.mla_attention.arguments import Problem, Softmax
from decodestep.ops.mla_attention.reference import values_up


def obstacle(p: Problem) -> str | None:
    """Why the native kernel cannot serve a call, or None."""
    if p.has_float64:
        return "has no float64"
    if p.joined is not None:
        words = p.joined.ctypes.data % 4 == 0 and (p.joined.strides[0] % 4 == 0 or len(p.joined) <= 1)
        return None if words and packed_blocks(p.joined) else "needs rows of bytes aligned to words, without gaps in a block"
    kv, kr = p.kv_cache.rows, p.kr_cache.rows
    if not (kv.flags.aligned and kr.flags.aligned):
        return "needs aligned caches"
    if not (packed_blocks(kv) and packed_blocks(kr)):
        return "needs caches whose values lie in C order inside a block"
    return None


def packed_blocks(rows: np.ndarray) -> bool:
    """Whether the rows of a paged cache lie in C order inside a block."""
    size, width, item = rows.shape[1], rows.shape[3], rows.itemsize
    rows_follow = size <= 1 or rows.strides[1] == width * item
    return rows.flags.c_contiguous or (rows_follow and (width <= 1 or rows.strides[3] == item))


def attention(p: Problem, sinks: np.ndarray | None = None, parts: Softmax | None = None) -> tuple[np.ndarray, np.ndarray]:
    """As the reference's, with queries in float32. sinks: float32 (N,), a score without a value for each head. parts: written
    if they are given."""
    tokens, heads, _ = p.query_rope.shape
    out = np.empty((tokens, heads, p.kv_cache.rows.shape[3] // p.groups), np.float32)
    lse = np.empty((tokens, heads), np.float32)
    _native.mla_attention(
        query=None if p.query is None else contiguous(p.query),
        query_rope=contiguous(p.query_rope),
        kv_cache=bits(p.kv_cache.rows if p.joined is None else p.joined),
        kr_cache=bits(p.kr_cache.rows) if p.joined is None else None,
        nz=p.kv_cache.nz,
        kv_scale=p.kv_cache.scale,
        kr_scale=p.kr_cache.scale,
        block_table=p.block_table,
        sequence=p.sequence,
        lengths=p.lengths,
        scale=p.scale,
        groups=p.groups,
        out=out,
        lse=lse,
        threads=threads(),
        sinks=sinks,
        largest=None if parts is None else parts.largest,
        sums=None if parts is None else parts.sums,
    )
    return out if p.w_uv is None else values_up(out, p.w_uv, linear), lse
