"""The places of rows in weights of queries, keys and values."""

from __future__ import annotations

import numpy as np

from decodestep.decoding.config import Config


def qkv_rows(config: Config, part: str, layer: int) -> slice:
    """Which rows of a layer's weight of queries, keys and values are those of "query", "key" or "value"."""
    queries, keys = (heads * config.head_dim_of(layer) for heads in (config.heads, config.kv_heads_of(layer)))
    first = {"query": 0, "key": queries, "value": queries + keys}[part]
    return slice(first, first + (queries if part == "query" else keys))


def neighbour_order(heads: int, start: int, width: int, after: int = 0) -> np.ndarray:
    """The rows of heads of start + width + after, the `width` of each with the halves of a pair side by side."""
    pairs = start + np.arange(width).reshape(2, -1).T.reshape(-1)
    head = np.concatenate([np.arange(start), pairs, start + width + np.arange(after)])
    return (np.arange(heads)[:, None] * len(head) + head).reshape(-1)


def padded_heads(rows: np.ndarray, heads: int, head_dim: int) -> np.ndarray:
    """The rows of every head, and zeros up to head_dim of them: in all formats bytes of zero are zeros."""
    own = len(rows) // heads
    if own == head_dim:
        return rows
    padded = np.zeros((heads, head_dim, rows.shape[1]), rows.dtype)
    padded[:, :own] = rows.reshape(heads, own, -1)
    return padded.reshape(heads * head_dim, -1)
