"""sparse_mla_attention by its formula, token by token."""

from __future__ import annotations

import numpy as np

from decodestep.ops.sparse_mla_attention.arguments import Problem


def attend(p: Problem) -> np.ndarray:
    """(T, N, width) in float32, or in float64 with float64 arguments."""
    query, rope, latents, rope_keys = p.arrays
    dtype = np.dtype(np.float64 if p.has_float64 else np.float32)
    out = np.zeros(query.shape, dtype)
    with np.errstate(all="ignore"):  # infinities and NaN propagate as in IEEE arithmetic
        for t, (slots, count) in enumerate(zip(p.slots, p.counts, strict=True)):
            if count == 0:
                continue
            kv, kr = (cache[slots[:count], 0, 0].astype(dtype) for cache in (latents, rope_keys))
            score = (query[t].astype(dtype) @ kv.T + rope[t].astype(dtype) @ kr.T) * dtype.type(p.scale)
            weight = np.exp(score - score.max(axis=-1, keepdims=True))
            weight /= weight.sum(axis=-1, keepdims=True)
            if p.rounding is not None:
                weight = weight.astype(query.dtype).astype(dtype)
            out[t] = weight @ kv
    return out
