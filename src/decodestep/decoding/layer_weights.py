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
    """Grouped-query attention: `GroupedAttention` without what the config says of a layer. gate: (He, N * D), whose sigmoid
    multiplies the results."""

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
    gate: Weight | None = None


@dataclass(frozen=True, eq=False)
class IndexerWeights:
    """A lightning indexer: `Indexer`. by_head: in a dense format."""

    query: Weight
    key: Weight
    key_norm: np.ndarray
    key_norm_bias: np.ndarray
    by_head: PackedWeight


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
    indexer: IndexerWeights | None = None


@dataclass(frozen=True, eq=False)
class DeltaWeights:
    """Linear attention by the gated delta rule.

    qkv: (He, C), queries, keys and values, which are convolved. gate: (He, Hv * dv), of the results after their norm.
    beta_alpha: (He, 2 * Hv), those of which sigmoids are beta, and those from which decays are made. convolution: float32
    (K, C). decay: float32 (Hv,), -e^A_log. step_bias: float32 (Hv,). norm: float32 (dv,). output: (Hv * dv, He).
    """

    qkv: Weight
    gate: Weight
    beta_alpha: Weight
    convolution: np.ndarray
    decay: np.ndarray
    step_bias: np.ndarray
    norm: np.ndarray
    output: Weight
    output_bias: None = None


@dataclass(frozen=True, eq=False)
class MambaWeights:
    """Mamba2.

    input: (He, H * P + C + H), the gate, what is convolved (inputs, what the state reads, what reads it), and steps.
    convolution: float32 (K, C). convolution_bias: float32 (C,). decay: float32 (H,), -e^A_log. step_bias, skip: float32 (H,),
    dt_bias and D. norm: float32 (H * P,). output: (H * P, He).
    """

    input: Weight
    convolution: np.ndarray
    convolution_bias: np.ndarray | None
    decay: np.ndarray
    step_bias: np.ndarray
    skip: np.ndarray
    norm: np.ndarray
    output: Weight
    output_bias: None = None


@dataclass(frozen=True, eq=False)
class ConvolutionWeights:
    """A short convolution. input: (He, 3 * He), what multiplies its inputs, what multiplies its results, its inputs.
    convolution: float32 (K, He)."""

    input: Weight
    convolution: np.ndarray
    output: Weight
    input_bias: np.ndarray | None = None
    convolution_bias: np.ndarray | None = None
    output_bias: np.ndarray | None = None


MixerWeights = GroupedWeights | LatentWeights | DeltaWeights | MambaWeights | ConvolutionWeights


@dataclass(frozen=True, eq=False)
class ExpertWeights:
    """A mixture of experts: `Mixture` without the rule, which is the config's. router: in a dense format. factors: of the
    weights of every expert, after the selection. shared_gate: (He, 1), in a dense format, whose sigmoid multiplies the shared
    expert. latent_down, latent_up: (He, R) and (R, He), before and after the routed experts."""

    router: PackedWeight
    bias: np.ndarray | None
    routed: FeedForward
    shared: FeedForward | None
    router_bias: np.ndarray | None = None
    factors: np.ndarray | None = None
    shared_gate: PackedWeight | None = None
    latent_down: Weight | None = None
    latent_up: Weight | None = None


@dataclass(frozen=True, eq=False)
class SideBySideWeights:
    """A dense block and a mixture of experts that both read the residual stream: `SideBySide`."""

    dense: FeedForward
    dense_post_norm: np.ndarray
    experts: ExpertWeights
    router_norm: np.ndarray
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
    """A layer: `LayerWeights`. attention_norm: of what the mixer reads. mixer, feed_forward: None where the layer has none."""

    attention_norm: np.ndarray | None
    mixer: MixerWeights | None
    ffn_norm: np.ndarray | None
    feed_forward: FeedForward | ExpertWeights | SideBySideWeights | None
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
