"""The call into the native core."""

from __future__ import annotations

import numpy as np

from decodestep import _native
from decodestep._base.arrays import bits, contiguous
from decodestep._base.threads import threads
from decodestep.ops.linear.cpu import linear
from decodestep.ops.mla_attention.arguments import Cache
from decodestep.ops.mla_attention.reference import values_up
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import PackedWeight


def obstacle(query_rope: np.ndarray, *caches: Cache) -> str | None:
    """Why the native kernel cannot serve a call, or None."""
    if np.float64 in (query_rope.dtype, *(cache.rows.dtype for cache in caches)):
        return "has no float64"
    if not all(cache.rows.flags.aligned for cache in caches):
        return "needs aligned caches"
    if not all(_packed_blocks(cache.rows) for cache in caches):
        return "needs caches whose rows follow each other inside a block"
    return None


def _packed_blocks(rows: np.ndarray) -> bool:
    size, width, item = rows.shape[1], rows.shape[3], rows.itemsize
    rows_follow = size <= 1 or rows.strides[1] == width * item
    return rows.flags.c_contiguous or (rows_follow and (width <= 1 or rows.strides[3] == item))


def attention(
    query: np.ndarray | None,
    query_rope: np.ndarray,
    kv_cache: Cache,
    kr_cache: Cache,
    block_table: np.ndarray,
    sequence: np.ndarray,
    lengths: np.ndarray,
    scale: float,
    groups: int,
    w_uv: PackedWeight | LinearPanels | None,
) -> np.ndarray:
    tokens, heads, _ = query_rope.shape
    out = np.empty((tokens, heads, kv_cache.rows.shape[3] // groups), np.float32)
    _native.mla_attention(
        query=None if query is None else contiguous(query),
        query_rope=contiguous(query_rope),
        kv_cache=bits(kv_cache.rows),
        kr_cache=bits(kr_cache.rows),
        kv_scale=kv_cache.scale,
        kr_scale=kr_cache.scale,
        block_table=block_table,
        sequence=sequence,
        lengths=lengths,
        scale=scale,
        groups=groups,
        out=out,
        threads=threads(),
    )
    return out if w_uv is None else values_up(out, w_uv, linear)
