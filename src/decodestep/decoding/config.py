"""A model's sizes and constants."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from decodestep.ops.expert_router.arguments import RouterRule

BlockNorms = Literal["before", "after", "both", "parallel"]
QueryKeyNorm = Literal["head", "row", "head_after_rope"]
Mixer = Literal["attention", "delta", "mamba", "convolution", "none"]


@dataclass(frozen=True)
class IndexerConfig:
    """Sizes of the lightning indexer of latent attention over selected positions.

    heads, head_dim: of its queries; its keys have one head. selected: how many positions a token attends to at most. full: for
    every layer whether it has an indexer; the others attend to what the last one before them selects. half_split: whether the
    columns of a rope pair are half a rope apart; the rope is on a head's first columns. drafts_share: whether the drafts of one
    layer for next-token prediction attend to what the first of them selects.
    """

    heads: int
    head_dim: int
    selected: int
    full: tuple[bool, ...]
    half_split: bool
    drafts_share: bool = False

    @property
    def layers(self) -> int:
        """How many layers the cache has index keys of."""
        return sum(self.full)


@dataclass(frozen=True)
class LatentConfig:
    """Sizes of multi-head latent attention.

    query_rank: the width of the queries' latent; None: queries come from the hidden state. latent_dim: of the cached latent.
    nope_dim, rope_dim: of the parts of a head of queries and keys without and with rope. value_dim: of a head's values.
    scale: of the scores. norm_eps: of the latents' norms. biases: of the projections to the latents and of the output.
    indexer: by which tokens select the positions that they attend to; None: they attend to all.
    """

    query_rank: int | None
    latent_dim: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    scale: float
    norm_eps: float = 1e-6
    biases: bool = False
    indexer: IndexerConfig | None = None


@dataclass(frozen=True)
class GroupedConfig:
    """Options of grouped-query attention.

    scale: of the scores; None: 1 / sqrt(head_dim). biases: which parts have one, of "query", "key", "value" and
    "attention_output". query_key_norm: what is normalised before its rope: every head of queries and keys, or all heads of
    a token as one row; or every head after its rope; None: nothing. windows: for every layer the number of positions that a
    token attends to, its own included, 0 for all; (): no windows. ropes: for every layer the index of its rope; (): one for
    all. rope_dim: how many columns of a head have a rope, the first ones; None: all. score_cap: c of scores that become
    c * tanh(score / c); 0: none. sinks: whether every query head has a score without a value, which takes a part of the
    softmax. head_dims, kv_heads: for every layer its own, of which `Config` has the largest; (): those of `Config`. keys_of:
    for every layer that whose keys and values it reads, itself or an earlier one; (): itself. keys_as_values: for every layer
    whether its values are its keys, before norm and rope; (): they are not. value_norm: whether every head of values is
    divided by its root mean square. gated: whether the result of every head is multiplied by the sigmoid of a gate.
    """

    scale: float | None = None
    biases: tuple[str, ...] = ()
    query_key_norm: QueryKeyNorm | None = None
    windows: tuple[int, ...] = ()
    ropes: tuple[int, ...] = ()
    rope_dim: int | None = None
    score_cap: float = 0.0
    sinks: bool = False
    head_dims: tuple[int, ...] = ()
    kv_heads: tuple[int, ...] = ()
    keys_of: tuple[int, ...] = ()
    keys_as_values: tuple[bool, ...] = ()
    value_norm: bool = False
    gated: bool = False

    def window(self, layer: int) -> int:
        return self.windows[layer] if self.windows else 0

    def rope_index(self, layer: int) -> int:
        return self.ropes[layer] if self.ropes else 0

    def source(self, layer: int) -> int:
        """The layer whose keys and values it reads."""
        return self.keys_of[layer] if self.keys_of else layer

    def has_value_weight(self, layer: int) -> bool:
        return not (self.keys_as_values and self.keys_as_values[layer])


@dataclass(frozen=True)
class DeltaConfig:
    """Sizes of linear attention by the gated delta rule (`gated_delta_rule`).

    key_heads, key_dim: of queries and keys. value_heads, value_dim: of values; the state of a layer is (value_heads, key_dim,
    value_dim). taps: of the convolution of queries, keys and values. tiled: whether value head h reads key head h mod
    key_heads; otherwise value_heads / key_heads neighbours read the same one.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    tiled: bool = False

    @property
    def keys(self) -> int:
        """The width of all keys, and of all queries."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """The width of all values."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values."""
        return 2 * self.keys + self.values


@dataclass(frozen=True)
class MambaConfig:
    """Sizes of Mamba2 (`selective_state_update`).

    heads, head_dim: of the inputs. groups: of heads that share what the state reads and what reads the state; the norm of the
    results is over each. state: N; the state of a layer is (heads, state, head_dim). taps, bias: of the convolution.
    """

    heads: int
    head_dim: int
    groups: int
    state: int
    taps: int
    bias: bool = True

    @property
    def inner(self) -> int:
        """The width of all heads."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Of the convolution: inputs, and for each group what the state reads and what reads it."""
        return self.inner + 2 * self.groups * self.state


@dataclass(frozen=True)
class ConvolutionConfig:
    """Short convolutions in attention's place: their taps, of He channels, and whether they and their products have biases."""

    taps: int
    bias: bool = False


@dataclass(frozen=True)
class Experts:
    """A mixture of experts.

    count: the number of experts per layer. width: of an expert. shared: the width of the shared expert, 0 if there is none.
    rule: how a token's experts are selected (`expert_router`). corrected: whether a bias is added to the scores for selection.
    layers: which layers have experts; the others are dense. biases: whether the router and the experts' products have biases.
    shared_gated: whether the shared expert is multiplied by the sigmoid of a product of its own. latent: the width to which the
    rows are projected that routed experts read, and from which their sum is projected back; 0: they read the rows themselves.
    beside_dense: whether a layer with experts has a dense block too, as `SideBySideWeights`.
    """

    count: int
    width: int
    shared: int
    rule: RouterRule
    corrected: bool
    layers: tuple[bool, ...]
    biases: bool = False
    shared_gated: bool = False
    latent: int = 0
    beside_dense: bool = False


@dataclass(frozen=True)
class Config:
    """Sizes and constants of a model.

    architecture: its name in the checkpoint. hidden: He, the width of the hidden state. heads: query heads. kv_heads: key/value
    heads, each shared by heads / kv_heads query heads. head_dim: the width of a head. context: the largest number of tokens of
    a sequence, prompt included. context_reason: why the checkpoint says more; "" if it does not.
    latent_attention: None for grouped-query attention. experts: None if all layers are dense.
    grouped: the options of grouped-query attention.
    mixers: for every layer what mixes the rows of different positions: attention, the others with a state instead of keys and
    values, or none; (): attention. delta, mamba, convolution: the sizes of the others, each None where no layer has it.
    activation: of feed-forward blocks: "swiglu", "gelu_gated" (tanh form), "clamped_swiglu" (`FeedForward`) or "relu_squared",
    which has no gate. biases: whether the products of a dense block have biases. block_norms: whether what attention and
    feed-forward blocks read is normalised, or what they add to the residual stream, or both; "parallel": one norm is before
    both blocks, which read the same rows. centred_norms: whether norms subtract the mean first (LayerNorm without biases).
    norm_shift: added to the checkpoint's norm weights.
    rope_half_split: whether the two columns of a rope pair are half a head apart; otherwise they are adjacent.
    embedding_scale, residual_scale: factors of the embeddings and of the blocks' outputs. logits_divisor: what the last hidden
    state is divided by. logits_cap: c of logits that become c * tanh(logit / c); 0: none. tied: whether the embedding is the
    logits weight.
    feed_forwards: for every layer the width of its dense block, of which feed_forward is the largest; (): feed_forward. One of
    0 without experts has no feed-forward block.
    layer_inputs: the width of an input that every layer has of its own, made of each token and its embedding; 0: none.
    layer_scales: whether every layer multiplies the residual stream by a factor.
    next_token_layers: K layers for next-token prediction after the model's L: they draft, and no logits depend on them.
    skipped_layers: such layers whose tensors are not all there; they are left out.
    latent_dim, rope_dim, scale: the sizes and the score scale of the model in its form as multi-head latent attention
    (`models.latent_form`).
    """

    architecture: str
    name: str
    vocab_size: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    context: int
    norm_eps: float
    latent_attention: LatentConfig | None = None
    grouped: GroupedConfig = GroupedConfig()
    mixers: tuple[Mixer, ...] = ()
    delta: DeltaConfig | None = None
    mamba: MambaConfig | None = None
    convolution: ConvolutionConfig | None = None
    experts: Experts | None = None
    activation: str = "swiglu"
    biases: bool = False
    block_norms: BlockNorms = "before"
    centred_norms: bool = False
    norm_shift: float = 0.0
    rope_half_split: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logits_divisor: float = 1.0
    logits_cap: float = 0.0
    tied: bool = False
    feed_forwards: tuple[int, ...] = ()
    layer_inputs: int = 0
    layer_scales: bool = False
    next_token_layers: int = 0
    skipped_layers: int = 0
    context_reason: str = ""

    def index_layer(self, layer: int) -> int:
        """Where the cache of a model with an indexer has the index keys by which a layer attends: its own, or those of the
        layer that selects for it."""
        assert self.latent_attention is not None and self.latent_attention.indexer is not None
        return sum(self.latent_attention.indexer.full[: layer + 1]) - 1

    @property
    def context_in_words(self) -> str:
        """With the reason why it is less than the checkpoint says."""
        return f"the context of {self.context} tokens" + (f" ({self.context_reason})" if self.context_reason else "")

    @property
    def latent_dim(self) -> int:
        return self.latent_attention.latent_dim if self.latent_attention else self.kv_heads * self.head_dim

    @property
    def rope_dim(self) -> int:
        return self.latent_attention.rope_dim if self.latent_attention else self.kv_heads * self.head_dim

    @property
    def scale(self) -> float:
        if self.latent_attention:
            return self.latent_attention.scale
        return 1.0 / math.sqrt(self.head_dim) if self.grouped.scale is None else self.grouped.scale

    @property
    def has_latent_form(self) -> bool:
        """Whether grouped-query attention can be converted to latent attention: it is only products and one rope."""
        options = self.grouped
        plain = self.block_norms == "before" and options.query_key_norm is None and options.rope_dim is None
        capped = options.score_cap or options.sinks or options.value_norm or options.head_dims or options.kv_heads
        capped = capped or options.keys_of or options.keys_as_values or self.layer_inputs or self.layer_scales
        more = options.biases or any(options.windows) or any(options.ropes) or options.gated or self.mixers
        return plain and not (more or capped)

    @property
    def rotated(self) -> int:
        """The columns of a head that have a rope."""
        if self.latent_attention:
            return self.latent_attention.rope_dim
        return self.head_dim if self.grouped.rope_dim is None else self.grouped.rope_dim

    def rope_width(self, index: int) -> int:
        """The columns that a rope turns: those of a head of its layers."""
        dims = [self.head_dim_of(i) for i in range(self.layers) if self.grouped.rope_index(i) == index]
        return dims[0] if self.grouped.head_dims and dims else self.rotated

    def head_dim_of(self, layer: int) -> int:
        return self.grouped.head_dims[layer] if self.grouped.head_dims else self.head_dim

    def kv_heads_of(self, layer: int) -> int:
        return self.grouped.kv_heads[layer] if self.grouped.kv_heads else self.kv_heads

    def feed_forward_of(self, layer: int) -> int:
        return self.feed_forwards[layer] if self.feed_forwards else self.feed_forward

    def has_dense_block(self, layer: int) -> bool:
        """layer: in [0, L + K)."""
        if self.has_experts(layer):
            return self.experts is not None and self.experts.beside_dense
        return layer >= self.layers or self.feed_forward_of(layer) > 0

    def mixer_of(self, layer: int) -> Mixer:
        """layer: in [0, L + K). Those for next-token prediction have attention."""
        return self.mixers[layer] if layer < len(self.mixers) else "attention"

    @property
    def cache_layers(self) -> int:
        """How many layers the cache has keys and values of: those with attention to their own."""
        return sum(map(self._has_keys, range(self.layers)))

    def cache_layer(self, layer: int) -> int:
        """Where the cache has the keys and values that a layer with attention reads."""
        return sum(map(self._has_keys, range(self.grouped.source(layer))))

    def _has_keys(self, layer: int) -> bool:
        return self.mixer_of(layer) == "attention" and self.grouped.source(layer) == layer

    def has_feed_forward(self, layer: int) -> bool:
        """layer: in [0, L + K)."""
        return self.has_experts(layer) or self.has_dense_block(layer)

    def has_experts(self, layer: int) -> bool:
        """layer: in [0, L + K). Those for next-token prediction are sparse wherever the model has a sparse layer."""
        return self.experts is not None and (layer >= self.layers or self.experts.layers[layer])
