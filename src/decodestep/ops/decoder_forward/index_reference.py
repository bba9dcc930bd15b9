"""The lightning indexer of a decoder's layer by its definition, token by token."""

from __future__ import annotations

import numpy as np

from decodestep.ops.decoder_forward.arguments import PAGE, Call
from decodestep.ops.decoder_forward.latent_cache import from_bytes, to_bytes
from decodestep.ops.decoder_forward.layers import LatentAttention
from decodestep.ops.decoder_forward.rope_pairs import turn_first_columns
from decodestep.ops.linear.reference import linear, with_bias
from decodestep.ops.rms_norm.reference import rms_norm

KEY_EPS = 1e-6  # of the norm of index keys, whatever that of the model's norms


def select(call: Call, layer: LatentAttention, h: np.ndarray, number: int) -> list[np.ndarray]:
    """Of every token the positions that it attends to, ascending; writes the tokens' index keys. number: of the layer."""
    assert call.weights.latent is not None
    most = call.weights.latent.selected
    return [np.sort(np.argsort(-score, kind="stable")[:most]) for score in scores(call, layer, h, number)]


def scores(call: Call, layer: LatentAttention, h: np.ndarray, number: int) -> list[np.ndarray]:
    """Of every token those of the positions up to its own; writes the tokens' index keys."""
    sizes, x, dtype = call.weights.latent, layer.indexer, call.sin.dtype
    assert sizes is not None and x is not None and call.index_keys is not None
    assert layer.query_down is not None and layer.query_norm is not None
    cache = call.index_keys[:, call.weights.index_layers[number]]
    key = linear(h, x.key)
    key = rms_norm(key - key.mean(axis=-1, keepdims=True), x.key_norm.astype(dtype), KEY_EPS) + x.key_norm_bias.astype(dtype)
    slab, page = np.divmod(call.page_table[call.sequence, call.positions // PAGE], cache.shape[1])
    key, in_bytes = _turned(call, key[:, None], sizes.rope)[:, 0], cache.dtype == np.int8
    cache[slab, page, call.positions % PAGE] = to_bytes(key.astype(np.float32)) if in_bytes else key.astype(cache.dtype)
    compressed = with_bias(linear(h, layer.query_down), layer.query_down_bias)
    compressed = rms_norm(compressed, layer.query_norm.astype(dtype), sizes.eps)
    query = _turned(call, linear(compressed, x.query).reshape(len(h), sizes.index_heads, -1), sizes.rope)
    if in_bytes:
        query = _rounded(to_bytes(query.astype(np.float32)), dtype)
    by_head = linear(h, x.by_head) * dtype.type((sizes.index_heads * sizes.index_width) ** -0.5)
    found = []
    for t, position in enumerate(call.positions):
        slab, page = np.divmod(call.page_table[call.sequence[t], : position // PAGE + 1], cache.shape[1])
        keys = cache[slab, page].reshape(-1, cache.shape[-1])[: position + 1]
        keys = _rounded(keys, dtype) if in_bytes else keys.astype(dtype)
        found.append(_products(query[t], keys, by_head[t]))
    return found


def _products(query: np.ndarray, keys: np.ndarray, by_head: np.ndarray) -> np.ndarray:
    """The scores of a token's keys."""
    score: np.ndarray = by_head @ np.maximum(query @ keys.T, 0)
    return score


def _rounded(rows: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The values of rows in bytes."""
    whole, scales = from_bytes(rows, dtype)
    return whole * scales


def _turned(call: Call, heads: np.ndarray, width: int) -> np.ndarray:
    """With the first `width` columns of each turned by the angles of the tokens' positions."""
    return turn_first_columns(heads, *(table[0, call.positions, : width // 2] for table in (call.sin, call.cos)))
