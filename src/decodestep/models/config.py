"""A model's sizes and weights, in the form that its decoders take them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import PackedWeight

Weight = PackedWeight | LinearPanels


@dataclass(frozen=True)
class Config:
    """Sizes and constants of a Llama-family model.

    hidden: He, the width of the hidden state. heads: query heads. groups: key/value heads, each shared by heads / groups query
    heads. head_dim: the width of a head. context: how many tokens a sequence may hold, prompt included.
    latent, rope, scale: the sizes and the score scale of the same model in its form as multi-head latent attention
    (see `models.convert`).
    """

    name: str
    vocab_size: int
    hidden: int
    layers: int
    heads: int
    groups: int
    head_dim: int
    feed_forward: int
    context: int
    norm_eps: float

    @property
    def latent(self) -> int:
        return self.groups * self.head_dim

    @property
    def rope(self) -> int:
        return self.groups * self.head_dim

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.head_dim)


@dataclass(frozen=True, eq=False)
class Layer:
    """The weights of a layer, each a product (inputs -> outputs); those of attention by the names of `mla_prolog`."""

    attention_norm: np.ndarray
    w_uq_qr: Weight  # queries
    w_dkv_kr: Weight  # values, then keys
    w_uk: np.ndarray  # (N, 0, Hckv): the part of a query without rope is empty
    w_o: Weight
    ffn_norm: np.ndarray
    w_gate: Weight
    w_up: Weight
    w_down: Weight


@dataclass(frozen=True, eq=False)
class Weights:
    """All weights of a model. inverse_frequencies: of the rotary embedding, float32 (head_dim / 2,)."""

    config: Config
    embedding: PackedWeight
    layers: tuple[Layer, ...]
    norm: np.ndarray
    output: Weight
    inverse_frequencies: np.ndarray
