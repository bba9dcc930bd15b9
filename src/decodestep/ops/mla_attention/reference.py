"""mla_attention by its formula, token by token."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from decodestep.ops.linear.reference import linear
from decodestep.ops.mla_attention.arguments import Cache
from decodestep.weights.feed_forward import on_host, part_of_outputs
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import PackedWeight


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
    return out if w_uv is None else values_up(out, w_uv, linear)


Product = Callable[[np.ndarray, PackedWeight | LinearPanels], np.ndarray]


def values_up(attended: np.ndarray, weight: PackedWeight | LinearPanels, product: Product) -> np.ndarray:
    """attended (T, N, K) times a weight (K, N * Dv), each head by its own outputs: (T, N, Dv)."""
    heads = attended.shape[1]
    width = weight.shape[1] // heads
    parts = [on_host(part_of_outputs(weight, n * width, width)) for n in range(heads)]
    every = [product(np.ascontiguousarray(attended[:, n]), part) for n, part in enumerate(parts)]
    return np.stack(every, axis=1)
