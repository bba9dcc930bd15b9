"""The call into the native core, which keeps a decoder of its own for each `DecoderWeights`."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from decodestep import _native
from decodestep._base.arrays import bits, contiguous
from decodestep._base.dispatch import threads
from decodestep.ops.decoder_forward.arguments import Call
from decodestep.ops.decoder_forward.weights import DecoderWeights, LayerWeights
from decodestep.weights.linear_panels import LinearPanels

_decoders: WeakKeyDictionary[DecoderWeights, Any] = WeakKeyDictionary()


def size_obstacle(*, hidden: int, heads: int, head_dim: int, feed_forward: int) -> str | None:
    """Why the native kernel cannot run a decoder of these sizes, or None."""
    if head_dim % 16:
        return f"head size {head_dim} is no multiple of 16"
    sizes = {"hidden size": hidden, "feed-forward size": feed_forward, "query size": heads * head_dim}
    return next((f"{name} {size} is no multiple of 32" for name, size in sizes.items() if size % 32), None)


def obstacle(call: Call) -> str | None:
    """Why the native kernel cannot serve a call, or None."""
    if call.sin.dtype != np.float32:
        return "has no float64"
    w = call.weights
    size = size_obstacle(hidden=w.hidden, heads=w.heads, head_dim=w.head_dim, feed_forward=w.feed_forward)
    return size and f"cannot: {size}"


def forward(call: Call) -> np.ndarray:
    logits = np.empty((len(call.wanted), call.weights.vocab_size), np.float32)
    _native.decoder_forward(
        decoder=_decoder(call.weights),
        ids=call.token_ids,
        sequence=call.sequence,
        positions=call.positions,
        sin=contiguous(call.sin),
        cos=contiguous(call.cos),
        keys=bits(call.keys),
        values=bits(call.values),
        page_table=call.page_table,
        wanted=call.wanted,
        logits=logits,
        threads=threads(),
    )
    return logits


def _decoder(weights: DecoderWeights) -> Any:
    decoder = _decoders.get(weights)
    if decoder is None:
        decoder = _decoders[weights] = _native.Decoder(
            heads=weights.heads,
            kv_heads=weights.kv_heads,
            head_dim=weights.head_dim,
            feed_forward=weights.feed_forward,
            eps=weights.norm_eps,
            scale=weights.scale,
            layers=[_layer(layer) for layer in weights.layers],
            norm=contiguous(weights.norm),
            logits=_panels(weights.logits),
            embedding=weights.embedding.rows,
            embedding_format=int(weights.embedding.format),
        )
    return decoder


def _layer(w: LayerWeights) -> tuple[np.ndarray, np.ndarray, list[tuple[np.ndarray, int, int]]]:
    panels = (w.query, w.values_keys, w.output, w.gate, w.up, w.down)  # in the order of csrc/bindings/decoder_forward.cpp
    return contiguous(w.attention_norm), contiguous(w.ffn_norm), [_panels(p) for p in panels]


def _panels(panels: LinearPanels) -> tuple[np.ndarray, int, int]:
    return panels.data, int(panels.format), panels.outputs
