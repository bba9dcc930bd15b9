"""decoder_forward as its definition (csrc/decoder/decoder_forward.h), layer by layer, attention token by token."""

from __future__ import annotations

import numpy as np

from decodestep._base.arrays import BFLOAT16
from decodestep.ops.decoder_forward.arguments import PAGE, Call
from decodestep.ops.decoder_forward.weights import LayerWeights
from decodestep.ops.linear.reference import linear
from decodestep.ops.rms_norm.reference import rms_norm
from decodestep.ops.swiglu.reference import swiglu
from decodestep.weights.packed import PackedWeight


def forward(call: Call) -> np.ndarray:
    w, dtype = call.weights, call.sin.dtype
    x = PackedWeight(w.embedding.rows[call.token_ids], w.embedding.format, w.hidden).values().astype(dtype)
    for number, layer in enumerate(w.layers):
        keys, values = call.keys[:, number], call.values[:, number]
        h = rms_norm(x, layer.attention_norm.astype(dtype), w.norm_eps)
        queries = _project(call, layer, h, keys, values)
        x = x + linear(_attend(call, queries, keys, values), layer.output)
        h = rms_norm(x, layer.ffn_norm.astype(dtype), w.norm_eps)
        x = x + linear(swiglu(linear(h, layer.gate), linear(h, layer.up)), layer.down)
    return linear(rms_norm(x[call.wanted], w.norm.astype(dtype), w.norm_eps), w.logits)


def _project(call: Call, layer: LayerWeights, h: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The queries (T, N, D), in bfloat16; keys and values join the cache of the layer."""
    w, tokens = call.weights, len(h)
    queries = _rotate(call, linear(h, layer.query).reshape(tokens, w.heads, w.head_dim))
    both = linear(h, layer.values_keys).reshape(tokens, 2, w.kv_heads, w.head_dim)
    slab, page = np.divmod(call.page_table[call.sequence, call.positions // PAGE], keys.shape[2])
    row = call.positions % PAGE
    values[slab, :, page, row // 2, :, row % 2] = both[:, 0].astype(BFLOAT16)
    pairs = _rotate(call, both[:, 1]).reshape(tokens, w.kv_heads, w.head_dim // 2, 2)
    keys[slab, :, page, :, row] = pairs.astype(BFLOAT16)
    return queries.astype(BFLOAT16)


def _rotate(call: Call, heads: np.ndarray) -> np.ndarray:
    """Turns each pair of columns of (T, heads, D) by the angle of its token's position."""
    sin, cos = (table[call.positions, None] for table in (call.sin, call.cos))
    even, odd = heads[..., ::2], heads[..., 1::2]
    return np.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1).reshape(heads.shape)


def _attend(call: Call, queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The attention of every token over positions 0 to its own, (T, N * D)."""
    w, dtype = call.weights, call.sin.dtype
    out = np.empty((len(queries), w.kv_heads, w.heads // w.kv_heads, w.head_dim), dtype)
    for t, position in enumerate(call.positions):
        slab, page = np.divmod(call.page_table[call.sequence[t], : position // PAGE + 1], keys.shape[2])
        k = keys[slab, :, page].transpose(1, 0, 3, 2, 4)  # (key-value head, page, position, pair, column of the pair)
        v = values[slab, :, page].transpose(1, 0, 2, 4, 3)  # (key-value head, page, pair, position of the pair, column)
        k, v = (a.reshape(w.kv_heads, -1, w.head_dim)[:, : position + 1].astype(dtype) for a in (k, v))
        q = queries[t].reshape(w.kv_heads, -1, w.head_dim).astype(dtype)
        score = q @ k.swapaxes(1, 2) * dtype.type(w.scale)
        weight = np.exp(score - score.max(axis=-1, keepdims=True))
        rounded = weight.astype(BFLOAT16).astype(dtype)
        out[t] = rounded @ v / weight.sum(axis=-1, keepdims=True)
    return out.reshape(len(queries), -1)
