"""The places of rows in weights of queries, keys and values, of attention and of the gated delta rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from decodestep.decoding.config import Config, DeltaConfig
from decodestep.models.checkpoint import Stored
from decodestep.weights.lazy_weight import whole


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


def chosen_rows(stored: Stored, rows: np.ndarray | slice) -> Stored:
    """Rows of a weight, in this order."""
    weight = whole(stored.weight)
    return stored._replace(weight=replace(weight, rows=np.ascontiguousarray(weight.rows[rows])))


def gated_rows(heads: int, head_dim: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of queries and those of gates, of a weight that has both of a head after another."""
    rows = np.arange(2 * heads * head_dim).reshape(heads, 2, head_dim)
    return rows[:, 0].reshape(-1), rows[:, 1].reshape(-1)


def delta_rows(d: DeltaConfig) -> dict[str, np.ndarray]:
    """The rows of weights that a checkpoint has by key heads: of queries, keys, values and gates, and of beta and decays. Each
    key head's come together, those of its value heads one after the other."""
    members = d.value_heads // d.key_heads
    widths = [d.key_dim, d.key_dim, members * d.value_dim, members * d.value_dim]
    rows = np.arange(d.key_heads * sum(widths)).reshape(d.key_heads, -1)
    query, key, value, gate = np.split(rows, np.cumsum(widths)[:-1], axis=1)
    beta, alpha = np.split(np.arange(2 * d.value_heads).reshape(d.key_heads, -1), 2, axis=1)
    return {
        "delta_qkv": np.concatenate([part.reshape(-1) for part in (query, key, value)]),
        "delta_gate": gate.reshape(-1),
        "delta_beta": beta.reshape(-1),
        "delta_alpha": alpha.reshape(-1),
    }


def tiled_order(d: DeltaConfig, width: int) -> np.ndarray:
    """The places of value heads of a width, that come by key heads, in the order in which neighbours read neighbouring ones."""
    members = d.value_heads // d.key_heads
    return np.arange(d.value_heads * width).reshape(d.key_heads, members, width).swapaxes(0, 1).reshape(-1)
