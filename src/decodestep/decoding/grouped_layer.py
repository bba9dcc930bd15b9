"""Grouped-query attention of one layer in float32: `linear`, the rope, and `mla_attention` where that serves.

That is: where no window cuts positions off, and neither caps nor sinks change the scores.
"""

from __future__ import annotations

import numpy as np

from decodestep.decoding.config import Config
from decodestep.decoding.decoder import TokenBatch
from decodestep.decoding.float32_layer import sigmoid, soft_capped
from decodestep.decoding.layer_weights import GroupedWeights
from decodestep.ops.decoder_forward.rope_pairs import turn_pairs
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
    ropes: tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
    *,
    layer: int,
) -> np.ndarray:
    """The attention output of every token, (T, N * D); writes its keys and values.

    h: float32 (T, He), what the block reads. cache: the part of `LatentPages` of the layer, or of that whose keys it reads:
    values, and keys after their rope with the halves of all heads apart, as `mla_attention` reads them; of layers with fewer
    columns, at the beginning of a row. slots: int64 (T,), the places of the tokens there; -1: not written. ropes: of queries
    and of keys, each sin and cos, float32 (T, D / 2). layer: its number, for its sizes and its window.
    """
    _, sequence, positions, page_table, *_ = batch
    tokens, groups, width, window = len(h), config.kv_heads_of(layer), config.head_dim_of(layer), config.grouped.window(layer)
    kv, kr = (part[..., : groups * width] for part in cache)
    queries = with_bias(linear(h, weights.query), weights.query_bias)
    queries = _normalise_and_rotate(queries, weights.query_norm, config, ropes[0], width)
    store(h, weights, config, cache, slots, ropes[1], layer=layer)
    # mla_attention reads whole rows of one width for all layers.
    plain = not config.grouped.score_cap and weights.sinks is None and kv.shape == cache[0].shape
    cut = np.full(tokens, not plain) | (positions >= window if window else False)
    out = np.empty((tokens, config.heads, width), np.float32)
    if not cut.all():
        whole = ~cut
        ends = positions[whole] + 1
        out[whole] = _attend_to_all(queries[whole], config, groups, kv, kr, page_table, ends, sequence[whole])
    for t in np.flatnonzero(cut):
        end, pages = positions[t] + 1, page_table[sequence[t]]
        seen = np.arange(max(0, end - window) if window else 0, end)
        out[t] = _attend_to(seen, queries[t], config, groups, kv, kr, pages, weights.sinks)
    rows = out.reshape(tokens, -1)
    return rows if weights.gate is None else rows * sigmoid(linear(h, weights.gate))


def store(
    h: np.ndarray,
    weights: GroupedWeights,
    config: Config,
    cache: tuple[np.ndarray, np.ndarray],
    slots: np.ndarray,
    rope: tuple[np.ndarray, np.ndarray],
    *,
    layer: int,
) -> None:
    """Writes the keys and values of tokens alone, if the layer has its own; the arguments are those of `attend`."""
    products = [linear(h, part) for part in (weights.values_keys, weights.keys) if part is not None]
    if not products:
        return
    groups, width, written = config.kv_heads_of(layer), config.head_dim_of(layer), slots >= 0
    values, keys = np.split(with_bias(np.concatenate(products, axis=1), weights.values_keys_bias), 2, axis=1)
    keys = _normalise_and_rotate(keys, weights.key_norm, config, rope, width)
    if config.grouped.value_norm:
        values = _normalise(values, np.ones(width, np.float32), config.norm_eps)
    kv, kr = (part[..., : groups * width] for part in cache)
    page, row = np.divmod(slots[written], kv.shape[1])
    kv[page, row, 0] = values[written]
    kr[page, row, 0] = keys.transpose(0, 2, 1, 3).reshape(len(h), groups * width)[written]


def _attend_to_all(
    queries: np.ndarray,
    config: Config,
    groups: int,
    kv: np.ndarray,
    kr: np.ndarray,
    page_table: np.ndarray,
    ends: np.ndarray,
    sequence: np.ndarray,
) -> np.ndarray:
    """Of tokens that attend to all positions below `ends`, (T, N, D): a query lies in the columns of its group's keys."""
    heads = config.heads
    spread = np.zeros((len(queries), heads, 2, groups, queries.shape[-1]), np.float32)
    for group in range(groups):
        own = slice(group * heads // groups, (group + 1) * heads // groups)
        spread[:, own, :, group] = queries[:, own]
    flat = spread.reshape(len(spread), heads, -1)
    return mla_attention(None, flat, kv, kr, page_table, ends, scale=config.scale, sequence=sequence, groups=groups)


def _attend_to(
    seen: np.ndarray,
    query: np.ndarray,
    config: Config,
    groups: int,
    kv: np.ndarray,
    kr: np.ndarray,
    pages: np.ndarray,
    sinks: np.ndarray | None,
) -> np.ndarray:
    """Of one token to the positions that it sees, (N, D). einsum keeps its order of sums whatever the threads of a BLAS."""
    count, size = len(seen), kv.shape[1]
    page, row = pages[seen // size], seen % size
    keys, values = kr[page, row, 0].reshape(count, 2, groups, -1), kv[page, row, 0].reshape(count, groups, -1)
    scores = np.einsum("gnhd,jhgd->gnj", query.reshape(groups, -1, *query.shape[1:]), keys) * np.float32(config.scale)
    scores = soft_capped(scores, config.grouped.score_cap)
    highest = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - highest)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total += np.exp(sinks.reshape(groups, -1, 1) - highest)
    return np.einsum("gnj,jgd->gnd", weights / total, values).reshape(config.heads, -1)


def _normalise_and_rotate(
    rows: np.ndarray, norm: np.ndarray | None, config: Config, rope: tuple[np.ndarray, np.ndarray], width: int
) -> np.ndarray:
    """Queries or keys (T, heads * D) of heads of a width as (T, heads, 2, D / 2), normalised before or after their rope, of
    which they need the first D / 2 pairs."""
    by_head, rope = (len(rows), rows.shape[1] // width, width), (rope[0][:, : width // 2], rope[1][:, : width // 2])
    if norm is not None and config.grouped.query_key_norm == "head_after_rope":
        return _normalise(_apply_rope(rows.reshape(by_head), *rope), norm.reshape(-1, 2).T.reshape(-1), config.norm_eps)
    return _apply_rope(_normalise(rows, norm, config.norm_eps).reshape(by_head), *rope)


def _apply_rope(heads: np.ndarray, sin: np.ndarray, cos: np.ndarray) -> np.ndarray:
    """(T, heads, D) with pairs side by side -> (T, heads, 2, D / 2), after their rope."""
    return np.stack(turn_pairs(heads, sin[:, None], cos[:, None]), axis=2)


def _normalise(rows: np.ndarray, norm: np.ndarray | None, eps: float) -> np.ndarray:
    """Every row, or every head of one, as the width of the norm says."""
    if norm is None:
        return rows
    return rms_norm(np.ascontiguousarray(rows).reshape(-1, len(norm)), norm, eps=eps).reshape(rows.shape)
