"""lightning_indexer by its formula, token by token."""

from __future__ import annotations

import numpy as np

from decodestep._base.arrays import BFLOAT16
from decodestep.ops.lightning_indexer.arguments import INT8, Arrays, Problem


def select(p: Problem) -> tuple[np.ndarray, np.ndarray | None]:
    """The selected positions (T, count), and their scores if those are asked for."""
    tokens = len(p.sequence)
    selected = np.full((tokens, p.most), -1, np.int32)
    values = np.full((tokens, p.most), -np.inf, np.float32)
    block_size = p.arrays.keys.shape[1]
    for t, n in enumerate(p.visible):
        j = np.arange(n)
        places = p.table[p.sequence[t], j // max(block_size, 1)], j % max(block_size, 1)
        with np.errstate(all="ignore"):
            score = _scores(p.arrays, t, places, rounded=p.rounding is not None)
        # Stable, so that of equal scores the lower position comes first; NaN comes last.
        first = np.argsort(-score, kind="stable")[: p.most]
        first = first if p.ordered else np.sort(first)
        selected[t, : len(first)], values[t, : len(first)] = first, score[first]
    return selected, values if p.with_values else None


def _scores(given: Arrays, t: int, places: tuple[np.ndarray, np.ndarray], *, rounded: bool) -> np.ndarray:
    """Of token t for the keys at these places. rounded: as CANN's kernels round."""
    query, keys, weights = given.query[t], given.keys[places][:, 0], given.weights[t]
    if keys.dtype == INT8:
        assert given.query_scale is not None and given.key_scale is not None
        product = keys.astype(np.int32) @ query.astype(np.int32).T
        scale = given.key_scale[places].astype(np.float32)
        if not rounded:
            by_head = weights.astype(np.float32) * given.query_scale[t].astype(np.float32)
            score: np.ndarray = np.maximum(product, 0).astype(np.float32) @ by_head * scale
            return score
        by_head = (weights.astype(np.float16) * given.query_scale[t].astype(np.float16)).astype(np.float32)
        product = np.maximum(product.astype(np.float32) / 1024, 0).astype(np.float16)
        score = product.astype(np.float32) @ by_head * scale
        return score
    dtype = np.dtype(np.float64 if np.float64 in (query.dtype, keys.dtype, weights.dtype) else np.float32)
    products = np.maximum(keys.astype(dtype) @ query.astype(dtype).T, 0)
    score = products @ weights.astype(dtype)
    return score.astype(BFLOAT16).astype(dtype) if rounded else score
