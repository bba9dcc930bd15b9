"""The weights of a model, in the fields that `decoder_forward` has for them; the weight of a product is (inputs, outputs)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decodestep.decoding.config import Config
from decodestep.decoding.rope import Rope
from decodestep.weights.feed_forward import FeedForward
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import PackedWeight

Weight = PackedWeight | LinearPanels


@dataclass(frozen=True, eq=False)
class GroupedWeights:
    """Grouped-query attention: `GroupedAttention` without what the config says of a layer."""

    query: Weight
    values_keys: Weight | None
    keys: Weight | None
    output: Weight
    query_bias: np.ndarray | None
    values_keys_bias: np.ndarray | None
    output_bias: np.ndarray | None
    query_norm: np.ndarray | None
    key_norm: np.ndarray | None
    norms_of_rows: bool
    sinks: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class LatentWeights:
    """Multi-head latent attention: `LatentAttention`."""

    query_down: Weight | None
    query_norm: np.ndarray | None
    query: Weight
    latent: Weight
    latent_norm: np.ndarray
    key_up: Weight
    value_up: Weight
    output: Weight
    query_down_bias: np.ndarray | None = None
    latent_bias: np.ndarray | None = None
    output_bias: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class ExpertWeights:
    """A mixture of experts: `Mixture` without the rule, which is the config's. router: in a dense format. factors: of the
    weights of every expert, after the selection."""

    router: PackedWeight
    bias: np.ndarray | None
    routed: FeedForward
    shared: FeedForward | None
    router_bias: np.ndarray | None = None
    factors: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class SideBySide:
    """A dense block and a mixture of experts, which both read the residual stream x, and whose outputs are added:

        rms_norm(dense(rms_norm(x, ffn_norm)), dense_post_norm)
            + rms_norm(experts(rms_norm(x, experts_norm)), experts_post_norm)

    The router reads x divided by its root mean square.
    """

    dense: FeedForward
    dense_post_norm: np.ndarray
    experts: ExpertWeights
    experts_norm: np.ndarray
    experts_post_norm: np.ndarray


@dataclass(frozen=True, eq=False)
class LayerInputWeights:
    """What a layer adds of an input of its own: `LayerInput`."""

    gate: Weight
    output: Weight
    norm: np.ndarray


@dataclass(frozen=True, eq=False)
class InputsOfLayers:
    """What makes the inputs of all layers, L * P wide:

        (rms_norm(x @ projection / sqrt(He), norm) + sqrt(P) * embedding[token]) / sqrt(2)

    with x the embedding of the token that the first layer reads, and every P of the product normalised by themselves.
    """

    embedding: Weight
    projection: Weight
    norm: np.ndarray


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer: `LayerWeights`."""

    attention_norm: np.ndarray | None
    attention: GroupedWeights | LatentWeights
    ffn_norm: np.ndarray | None
    feed_forward: FeedForward | ExpertWeights | SideBySide
    attention_post_norm: np.ndarray | None
    ffn_post_norm: np.ndarray | None
    input: LayerInputWeights | None = None
    scale: float = 1.0


@dataclass(frozen=True, eq=False)
class NextTokenWeights:
    """A layer for next-token prediction. embedding_norm, hidden_norm: of the two rows that `join`, (2 * He, He), reads, in this
    order. norm: after the layer, before the model's own `output`."""

    embedding_norm: np.ndarray
    hidden_norm: np.ndarray
    join: Weight
    layer: Layer
    norm: np.ndarray


@dataclass(frozen=True, eq=False)
class Weights:
    """All weights of a model, its sizes, and its ropes. norm, output: of the logits.

    embedding: `output` itself where that has the same values, else rows in the file's format.
    next_tokens: the layers for next-token prediction. inputs: what makes inputs of layers; None: they have none.
    """

    config: Config
    embedding: Weight
    layers: tuple[Layer, ...]
    norm: np.ndarray
    output: Weight
    ropes: tuple[Rope, ...]
    next_tokens: tuple[NextTokenWeights, ...] = ()
    inputs: InputsOfLayers | None = None
