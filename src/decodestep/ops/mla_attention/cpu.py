"""The call into the native core."""

from __future__ import annotations

import numpy as np

from decodestep import _native
from decodestep.arrays import packed
from decodestep.dispatch import threads


def obstacle(kv_cache: np.ndarray, kr_cache: np.ndarray) -> str | None:
    """Why the native kernel cannot serve these caches, or None."""
    if kv_cache.dtype != np.float32:
        return "needs float32"
    if not (kv_cache.flags.aligned and kr_cache.flags.aligned):
        return "needs aligned caches"
    if not (_packed_blocks(kv_cache) and _packed_blocks(kr_cache)):
        return "needs caches whose rows follow each other inside a block"
    return None


def _packed_blocks(cache: np.ndarray) -> bool:
    size, width, item = cache.shape[1], cache.shape[3], cache.itemsize
    rows_follow = size <= 1 or cache.strides[1] == width * item
    return cache.flags.c_contiguous or (rows_follow and (width <= 1 or cache.strides[3] == item))


def attention(
    query: np.ndarray | None,
    query_rope: np.ndarray,
    kv_cache: np.ndarray,
    kr_cache: np.ndarray,
    block_table: np.ndarray,
    sequence: np.ndarray,
    lengths: np.ndarray,
    scale: float,
    groups: int,
) -> np.ndarray:
    tokens, heads, _ = query_rope.shape
    out = np.empty((tokens, heads, kv_cache.shape[3] // groups), np.float32)
    _native.mla_attention(
        None if query is None else packed(query),
        packed(query_rope),
        kv_cache,
        kr_cache,
        block_table,
        sequence,
        lengths,
        scale,
        groups,
        out,
        threads(),
    )
    return out
