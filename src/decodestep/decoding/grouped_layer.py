"""Grouped-query attention of one layer in float32: `linear`, the rope, and `mla_attention` where no window cuts it off."""

from __future__ import annotations

import numpy as np

from decodestep.decoding.config import Config
from decodestep.decoding.decoder import TokenBatch
from decodestep.decoding.kv_cache import PAGE
from decodestep.decoding.layer_weights import GroupedWeights
from decodestep.ops.linear import linear
from decodestep.ops.linear.reference import with_bias
from decodestep.ops.mla_attention import mla_attention
from decodestep.ops.rms_norm import rms_norm


def attend(
    h: np.ndarray,
    weights: GroupedWeights,
    config: Config,
    cache: tuple[np.ndarray, np.ndarray],
    batch: TokenBatch,
    slots: np.ndarray,
    rope: tuple[np.ndarray, np.ndarray],
    *,
    window: int,
) -> np.ndarray:
    """The attention output of every token, (T, N * D); writes its keys and values.

    h: float32 (T, He), what the block reads. cache: the layer's part of `LatentPages`: values, and keys after their rope
    with the halves of all heads apart, as `mla_attention` reads them. slots: int64 (T,), the places of the tokens there. rope:
    sin and cos, float32 (T, D / 2). window: how many positions a token attends to, its own included; 0 for all.
    """
    kv, kr = cache
    _, sequence, positions, page_table, *_ = batch
    tokens, groups, width = len(h), config.kv_heads, config.head_dim
    queries = with_bias(linear(h, weights.query), weights.query_bias)
    both = np.concatenate([linear(h, part) for part in (weights.values_keys, weights.keys) if part is not None], axis=1)
    values, keys = np.split(with_bias(both, weights.values_keys_bias), 2, axis=1)
    queries = _normalise(queries, weights.query_norm, config.norm_eps).reshape(tokens, config.heads, width)
    keys = _normalise(keys, weights.key_norm, config.norm_eps).reshape(tokens, groups, width)
    queries, keys = _apply_rope(queries, *rope), _apply_rope(keys, *rope)
    kv.reshape(-1, kv.shape[-1])[slots] = values
    kr.reshape(-1, kr.shape[-1])[slots] = keys.transpose(0, 2, 1, 3).reshape(tokens, -1)
    cut = positions >= window if window else np.zeros(tokens, bool)
    out = np.empty((tokens, config.heads, width), np.float32)
    if not cut.all():
        whole = ~cut
        out[whole] = _attend_to_all(queries[whole], config, kv, kr, page_table, positions[whole] + 1, sequence[whole])
    for t in np.flatnonzero(cut):
        out[t] = _attend_in_window(queries[t], config, kv, kr, page_table[sequence[t]], positions[t] + 1, window)
    return out.reshape(tokens, -1)


def _attend_to_all(
    queries: np.ndarray,
    config: Config,
    kv: np.ndarray,
    kr: np.ndarray,
    page_table: np.ndarray,
    ends: np.ndarray,
    sequence: np.ndarray,
) -> np.ndarray:
    """Of tokens that attend to all positions below `ends`, (T, N, D): a query lies in the columns of its group's keys."""
    groups, heads = config.kv_heads, config.heads
    spread = np.zeros((len(queries), heads, 2, groups, config.head_dim // 2), np.float32)
    for group in range(groups):
        own = slice(group * heads // groups, (group + 1) * heads // groups)
        spread[:, own, :, group] = queries[:, own]
    flat = spread.reshape(len(spread), heads, -1)
    return mla_attention(None, flat, kv, kr, page_table, ends, scale=config.scale, sequence=sequence, groups=groups)


def _attend_in_window(
    query: np.ndarray, config: Config, kv: np.ndarray, kr: np.ndarray, pages: np.ndarray, end: int, window: int
) -> np.ndarray:
    """Of one token, (N, D). einsum keeps its order of sums whatever the threads of a BLAS."""
    at = np.arange(end - window, end)
    page, row = pages[at // PAGE], at % PAGE
    keys = kr[page, row, 0].reshape(window, 2, config.kv_heads, -1)
    values = kv[page, row, 0].reshape(window, config.kv_heads, -1)
    scores = np.einsum("gnhd,jhgd->gnj", query.reshape(config.kv_heads, -1, *query.shape[1:]), keys) * np.float32(config.scale)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("gnj,jgd->gnd", weights / weights.sum(axis=-1, keepdims=True), values).reshape(config.heads, -1)


def _apply_rope(heads: np.ndarray, sin: np.ndarray, cos: np.ndarray) -> np.ndarray:
    """(T, heads, D) with pairs side by side -> (T, heads, 2, D / 2), after their rope."""
    even, odd = heads[..., ::2], heads[..., 1::2]
    sin, cos = sin[:, None], cos[:, None]
    return np.stack([even * cos - odd * sin, odd * cos + even * sin], axis=2)


def _normalise(rows: np.ndarray, norm: np.ndarray | None, eps: float) -> np.ndarray:
    """Every row, or every head of one, as the width of the norm says."""
    if norm is None:
        return rows
    return rms_norm(np.ascontiguousarray(rows).reshape(-1, len(norm)), norm, eps=eps).reshape(rows.shape)
