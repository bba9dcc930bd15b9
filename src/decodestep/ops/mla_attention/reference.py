"""mla_attention as its formula, token by token."""

from __future__ import annotations

import numpy as np

from decodestep.ops.mla_attention.arguments import Cache


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
) -> np.ndarray:
    tokens, heads, _ = query_rope.shape
    latent = kv_cache.rows.shape[3]
    out = np.empty((tokens, heads, latent // groups), query_rope.dtype)
    own = np.arange(latent).reshape(groups, 1, -1).repeat(heads // groups, axis=1).reshape(heads, -1)  # a head's columns
    for t in range(tokens):
        blocks = block_table[sequence[t], : -(-lengths[t] // kv_cache.rows.shape[1])]
        kv, kr = (cache.read(blocks, lengths[t], query_rope.dtype) for cache in (kv_cache, kr_cache))
        score = query_rope[t] @ kr.T
        if query is not None:
            score = score + query[t] @ kv.T
        score = score * query_rope.dtype.type(scale)
        weight = np.exp(score - score.max(axis=-1, keepdims=True))
        weight /= weight.sum(axis=-1, keepdims=True)
        out[t] = np.take_along_axis(weight @ kv, own, axis=1)
    return out
