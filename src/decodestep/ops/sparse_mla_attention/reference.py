"""sparse_mla_attention by its formula, token by token."""

from __future__ import annotations

import numpy as np

from decodestep.ops.mla_attention.arguments import Softmax
from decodestep.ops.sparse_mla_attention.arguments import Problem


def attend(p: Problem) -> tuple[np.ndarray, Softmax]:
    """(T, N, width) and its softmax in float32, or in float64 with float64 arguments."""
    query, rope, *_ = p.arrays
    dtype = np.dtype(np.float64 if p.has_float64 else np.float32)
    out, parts = np.zeros(query.shape, dtype), p.empty_softmax(dtype)
    with np.errstate(all="ignore"):  # infinities and NaN propagate as in IEEE arithmetic
        for t, (slots, count) in enumerate(zip(p.slots, p.counts, strict=True)):
            if count == 0:
                continue
            kv, kr = (cache.read(slots[:count], count, dtype) for cache in p.caches)
            if p.rounding is not None and p.arrays.rope_keys is None:
                kv = kv.astype(query.dtype).astype(dtype)
            score = (query[t].astype(dtype) @ kv.T + rope[t].astype(dtype) @ kr.T) * dtype.type(p.scale)
            largest = score.max(axis=-1, keepdims=True)
            if p.sinks is not None:
                largest = np.maximum(largest, p.sinks[:, None].astype(dtype))
            weight = np.exp(score - largest)
            total = weight.sum(axis=-1, keepdims=True)
            if p.sinks is not None:
                total += np.exp(p.sinks[:, None].astype(dtype) - largest)
            parts.largest[t], parts.sums[t] = largest[:, 0], total[:, 0]
            weight /= total
            if p.rounding is not None:
                weight = weight.astype(query.dtype).astype(dtype)
            out[t] = weight @ kv
    return out, parts
