"""The weights of a decoder in the form in which decoder_forward multiplies by them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decodestep._base.checks import is_finite, is_int, require
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import PackedWeight

_CLASS = "DecoderWeights"


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """The weights of one layer: norms (He,) float32, products as `LinearPanels` of shape (inputs, outputs)."""

    attention_norm: np.ndarray
    query: LinearPanels  # (He, N * D), the two columns of a rotated pair side by side
    values_keys: LinearPanels  # (He, 2 * G * D): the values of all key-value heads, then their keys, in pairs like queries
    output: LinearPanels  # (N * D, He)
    ffn_norm: np.ndarray
    gate: LinearPanels  # (He, F)
    up: LinearPanels  # (He, F)
    down: LinearPanels  # (F, He)


@dataclass(frozen=True, eq=False)
class DecoderWeights:
    """All weights and constants of a decoder with grouped-query attention. The shapes are checked when it is made.

    embedding: (He, V) as a `PackedWeight`, one row per token. layers: one `LayerWeights` or more. norm: (He,) float32, before
    the logits. logits: (He, V) as `LinearPanels`.
    heads: N query heads, a multiple of kv_heads. kv_heads: G key-value heads; query head n reads head n // (N / G).
    head_dim: D, even. norm_eps: finite, >= 0, added to the mean square in every norm. scale: finite, the factor of the scores.
    """

    embedding: PackedWeight
    layers: tuple[LayerWeights, ...]
    norm: np.ndarray
    logits: LinearPanels
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    scale: float

    def __post_init__(self) -> None:
        require(len(self.layers) > 0, _CLASS, "layers", "one or more", "none")
        sizes = (self.heads, self.kv_heads, self.head_dim)
        positive = all(is_int(size) and size > 0 for size in sizes)
        require(positive, _CLASS, "heads, kv_heads and head_dim", "integers > 0", str(sizes))
        require(self.heads % self.kv_heads == 0, _CLASS, "heads", f"a multiple of kv_heads {self.kv_heads}", self.heads)
        require(self.head_dim % 2 == 0, _CLASS, "head_dim", "even", self.head_dim)
        require(is_finite(self.norm_eps) and self.norm_eps >= 0, _CLASS, "norm_eps", "a finite number >= 0", self.norm_eps)
        require(is_finite(self.scale), _CLASS, "scale", "a finite number", self.scale)
        require(isinstance(self.embedding, PackedWeight), _CLASS, "embedding", "a PackedWeight", self.embedding)
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        _require_vector("norm", self.norm, self.hidden)
        _require_panels("logits", self.logits, (self.hidden, self.vocab_size))
        require(self.vocab_size > 0, _CLASS, "embedding", "of one token or more", "none")
        for number, layer in enumerate(self.layers):
            _require_vector(f"layers[{number}].attention_norm", layer.attention_norm, self.hidden)
            _require_vector(f"layers[{number}].ffn_norm", layer.ffn_norm, self.hidden)
            shapes = {
                "query": (self.hidden, queries),
                "values_keys": (self.hidden, 2 * keys),
                "output": (queries, self.hidden),
                "gate": (self.hidden, self.feed_forward),
                "up": (self.hidden, self.feed_forward),
                "down": (self.feed_forward, self.hidden),
            }
            for name, shape in shapes.items():
                _require_panels(f"layers[{number}].{name}", getattr(layer, name), shape)

    @property
    def hidden(self) -> int:
        """He, the width of the residual stream."""
        return self.embedding.inputs

    @property
    def feed_forward(self) -> int:
        """F, the width between the products of the feed-forward block."""
        return self.layers[0].gate.outputs

    @property
    def vocab_size(self) -> int:
        return self.embedding.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the panels, which a step reads once: everything but the embedding and the norms."""
        per_layer = ((w.query, w.values_keys, w.output, w.gate, w.up, w.down) for w in self.layers)
        return self.logits.nbytes + sum(panels.nbytes for layer in per_layer for panels in layer)


def _require_vector(name: str, vector: np.ndarray, length: int) -> None:
    ok = isinstance(vector, np.ndarray) and vector.dtype == np.float32 and vector.shape == (length,)
    require(ok, _CLASS, name, f"float32 of shape {length}", vector)


def _require_panels(name: str, panels: LinearPanels, shape: tuple[int, int]) -> None:
    require(isinstance(panels, LinearPanels), _CLASS, name, "a LinearPanels", panels)
    require(panels.shape == shape, _CLASS, name, f"of shape {shape[0]}x{shape[1]}", "x".join(map(str, panels.shape)))
