"""The lightning indexer of a layer in float32: its keys in the cache, and the positions that its tokens select."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from decodestep.decoding.config import Config
from decodestep.decoding.decoder import TokenBatch
from decodestep.decoding.layer_weights import IndexerWeights, LatentWeights
from decodestep.ops.decoder_forward.index_reference import KEY_EPS
from decodestep.ops.decoder_forward.rope_pairs import turn_first_columns
from decodestep.ops.lightning_indexer import lightning_indexer
from decodestep.ops.linear import linear
from decodestep.ops.linear.reference import with_bias
from decodestep.ops.rms_norm import rms_norm

Rope = tuple[np.ndarray, np.ndarray]  # sin and cos of the tokens
# (h, the layer's weights, its index keys, rope) -> positions (T, most), ascending, then -1; None: all
Selector = Callable[[np.ndarray, LatentWeights, np.ndarray, Rope], np.ndarray | None]


def selector(config: Config, batch: TokenBatch, slots: np.ndarray) -> Selector | None:
    """What selects in the layers of one forward pass, in their order; None for a model without an indexer.

    slots: int64 (T,), the places of the tokens in a layer's cache; -1 for those that write none.
    """
    latent = config.latent_attention
    if latent is None or latent.indexer is None:
        return None
    indexer, selected = latent.indexer, None

    def select(h: np.ndarray, weights: LatentWeights, keys: np.ndarray, rope: Rope) -> np.ndarray | None:
        nonlocal selected
        if weights.indexer is not None:
            write_keys(h, weights.indexer, keys, slots, rope)
            if (batch.positions >= indexer.selected).any():  # others attend to all positions
                assert weights.query_down is not None and weights.query_norm is not None
                compressed = with_bias(linear(h, weights.query_down), weights.query_down_bias)
                compressed = rms_norm(compressed, weights.query_norm, eps=latent.norm_eps)
                selected = _select(h, compressed, weights.indexer, config, keys, batch, rope)
        return selected

    return select


def each_alone(batch: TokenBatch, keys: str) -> dict[str, Any]:
    """The layouts and lengths of a call in which every token is a sequence of its own, with the keys up to its own. keys: what
    the operator calls them."""
    return {
        "layout_query": "TND",
        f"layout_{keys}": "PA_BSND",
        "actual_seq_lengths_query": np.arange(1, len(batch.tokens) + 1),
        f"actual_seq_lengths_{keys}": batch.positions + 1,
        "block_table": batch.page_table[batch.sequence],
    }


def write_keys(h: np.ndarray, weights: IndexerWeights, cache: np.ndarray, slots: np.ndarray, rope: Rope) -> None:
    """The index keys of tokens, to these places of a layer's cache; -1: nowhere."""
    keys = linear(h, weights.key)
    centred = keys - keys.mean(axis=1, keepdims=True)
    keys = rms_norm(centred, weights.key_norm, eps=KEY_EPS) + weights.key_norm_bias
    written = slots >= 0
    cache.reshape(-1, cache.shape[-1])[slots[written]] = turn_first_columns(keys[:, None], *rope)[written, 0]


def _select(
    h: np.ndarray,
    compressed: np.ndarray,
    weights: IndexerWeights,
    config: Config,
    keys: np.ndarray,
    batch: TokenBatch,
    rope: Rope,
) -> np.ndarray:
    assert config.latent_attention is not None and config.latent_attention.indexer is not None
    x = config.latent_attention.indexer
    query = turn_first_columns(linear(compressed, weights.query).reshape(len(h), x.heads, x.head_dim), *rope)
    by_head = linear(h, weights.by_head) * np.float32((x.heads * x.head_dim) ** -0.5)
    made = lightning_indexer(query, keys, by_head, **each_alone(batch, "key"), sparse_count=x.selected, ordered=False)
    selected: np.ndarray = made.sparse_indices[:, 0]
    return selected
