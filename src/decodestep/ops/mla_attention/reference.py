"""mla_attention by its formula, token by token."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from decodestep.ops.linear.reference import linear
from decodestep.ops.mla_attention.arguments import Problem
from decodestep.weights.feed_forward import on_host, part_of_outputs
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import PackedWeight


def attention(p: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Results and logarithms of the sums of e^score, of `p` with queries in float32 or float64; every token sees something."""
    tokens, heads, _ = p.query_rope.shape
    latent, dtype = p.kv_cache.rows.shape[3], p.query_rope.dtype
    out, lse = np.empty((tokens, heads, latent // p.groups), dtype), np.empty((tokens, heads), dtype)
    own = np.arange(latent).reshape(p.groups, 1, -1).repeat(heads // p.groups, axis=1).reshape(heads, -1)  # a head's columns
    with np.errstate(all="ignore"):  # infinities and NaN propagate as in IEEE arithmetic
        for t in range(tokens):
            blocks = p.block_table[p.sequence[t], : -(-p.lengths[t] // p.kv_cache.rows.shape[1])]
            kv, kr = (cache.read(blocks, p.lengths[t], dtype) for cache in (p.kv_cache, p.kr_cache))
            score = p.query_rope[t] @ kr.T
            if p.query is not None:
                score = score + p.query[t] @ kv.T
            score = score * dtype.type(p.scale)
            highest = score.max(axis=-1, keepdims=True)
            weight = np.exp(score - highest)
            total = weight.sum(axis=-1, keepdims=True)
            out[t] = np.take_along_axis(weight / total @ kv, own, axis=1)
            lse[t] = np.where(highest == -np.inf, highest, highest + np.log(total))[:, 0]
    return out if p.w_uv is None else values_up(out, p.w_uv, linear), lse


Product = Callable[[np.ndarray, PackedWeight | LinearPanels], np.ndarray]


def values_up(attended: np.ndarray, weight: PackedWeight | LinearPanels, product: Product) -> np.ndarray:
    """attended (T, N, K) times a weight (K, N * Dv), each head by its own outputs: (T, N, Dv)."""
    heads = attended.shape[1]
    width = weight.shape[1] // heads
    parts = [on_host(part_of_outputs(weight, n * width, width)) for n in range(heads)]
    every = [product(np.ascontiguousarray(attended[:, n]), part) for n, part in enumerate(parts)]
    return np.stack(every, axis=1)
