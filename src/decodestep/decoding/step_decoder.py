"""The decoder that runs a whole step as one call of `decoder_forward`, on weights in panels."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

import numpy as np

from decodestep._base.arrays import BFLOAT16
from decodestep._base.profiling import run
from decodestep.decoding.config import Config, LatentConfig
from decodestep.decoding.decoder import Decoder, TokenBatch
from decodestep.decoding.float32_layer import inputs_of_layers, scale
from decodestep.decoding.kv_cache import PageLayout, Pages, SlabPages, grouped_layout, latent_layout
from decodestep.decoding.layer_decoder import next_token_text
from decodestep.decoding.layer_weights import (
    ConvolutionWeights,
    DeltaWeights,
    ExpertWeights,
    IndexerWeights,
    LatentWeights,
    Layer,
    MambaWeights,
    MixerWeights,
    SideBySideWeights,
    Weights,
)
from decodestep.decoding.next_tokens import NextTokenLayers
from decodestep.decoding.states import replay_width
from decodestep.ops.decoder_forward import (
    DecoderWeights,
    DeltaRule,
    GroupedAttention,
    Indexer,
    LatentAttention,
    LatentSizes,
    LayerInput,
    LayerWeights,
    Mamba,
    Mixture,
    ShortConvolution,
    SideBySide,
    cpu,
)
from decodestep.ops.decoder_forward.arguments import OP, PAGE, Call
from decodestep.ops.decoder_forward.cpu import block_obstacle, latent_obstacle
from decodestep.ops.decoder_forward.latent_cache import page_shape
from decodestep.ops.decoder_forward.recurrent_layers import Recurrence
from decodestep.ops.linear import Format, LinearPanels
from decodestep.ops.linear.cpu import gather_rows
from decodestep.weights.feed_forward import FeedForward

# The format of the weights, by dtype; None: the file's.
PANEL_FORMATS = {"auto": None, "bfloat16": Format.BF16, "int8": Format.Q8_0}
CACHE_DTYPES = {"bfloat16": BFLOAT16, "float16": np.dtype(np.float16), "int8": np.dtype(np.int8)}
# More formats to which `load` rounds.
QUANTISED = {name.lower(): Format[name] for name in ("Q8_0", "Q4_0", "Q2_K", "Q3_K", "Q4_K")}


def obstacle(config: Config) -> str | None:
    """Why the native step cannot run a model of this config, or None."""
    latent, experts = config.latent_attention, config.experts
    all_of_experts = experts is not None and all(experts.layers) and not experts.beside_dense
    blocks = [] if all_of_experts else [*(config.feed_forwards or [config.feed_forward])]
    blocks += [] if experts is None else [experts.width, experts.shared]
    if (why := block_obstacle(config.hidden, blocks)) is not None:
        return why
    if experts is not None and experts.latent % 32:
        return f"latent of experts {experts.latent} is not a multiple of 32"
    if config.layer_inputs % 32:
        return f"width of a layer's input {config.layer_inputs} is not a multiple of 32"
    if latent is None:
        return None
    if latent.nope_dim == 0:
        return "every query needs a part without rope"
    return latent_obstacle(_sizes(latent), compressed=latent.query_rank)


class StepDecoder(Decoder):
    """Runs a step as one native call: activations quantised where the weights are, attention in the cache's type.

    weights: made by `convert`, each a `LinearPanels`, the embedding perhaps in rows.
    cache_dtype: "bfloat16", "float16" or "int8". byte_index: whether index keys are int8 too; otherwise they have the type of
    rope keys.

    `native_weights` has them as `decoder_forward` takes them.
    """

    def __init__(self, weights: Weights, *, cache_dtype: str = "bfloat16", byte_index: bool = False) -> None:
        assert isinstance(weights.output, LinearPanels)
        self.config = config = weights.config
        latent = config.latent_attention
        self.cache_dtype, self.page_layout = cache_dtype, page_layout(config, cache_dtype, byte_index=byte_index)
        kept = ["latents" if latent else "keys and values"] * (cache_dtype == "int8") + ["index keys"] * byte_index
        as_bytes = f", {' and '.join(kept)} as int8" if kept else ""
        self.description = f"one native call a step{as_bytes}{next_token_text(config)}"
        self._head_dim = config.head_dim if latent else step_head_dim(config)
        self._layer_ropes, self._inputs = weights.ropes, weights.inputs
        self.long_after = weights.ropes[0].long_after
        self._ropes = [self._table(1024, long) for long in (False, True)]
        self.next_tokens = NextTokenLayers(weights) if weights.next_tokens else None
        self.replay_width = replay_width(config)
        self.native_weights = DecoderWeights(
            embedding=weights.embedding,
            layers=tuple(self._layer(layer, number) for number, layer in enumerate(weights.layers)),
            norm=weights.norm,
            logits=weights.output,
            heads=config.heads,
            kv_heads=1 if latent else config.kv_heads,
            head_dim=self._head_dim,
            head_values=config.head_dim,
            norm_eps=config.norm_eps,
            scale=config.scale,
            latent=None if latent is None else _sizes(latent),
            embedding_scale=config.embedding_scale,
            residual_scale=config.residual_scale,
            logits_scale=1 / config.logits_divisor,
            logits_cap=config.logits_cap,
            centred_norms=config.centred_norms,
        )
        self.values = self.native_weights, weights.ropes, weights.inputs, weights.next_tokens

    def _layer(self, layer: Layer, number: int) -> LayerWeights:
        parallel = self.config.block_norms == "parallel"
        return LayerWeights(
            attention_norm=layer.attention_norm,
            mixer=self._mixer(layer.mixer, number),
            ffn_norm=layer.attention_norm if parallel else layer.ffn_norm,
            feed_forward=_feed_forward(layer.feed_forward, self.config),
            attention_post_norm=layer.attention_post_norm,
            ffn_post_norm=layer.ffn_post_norm,
            parallel=parallel,
            input=None if layer.input is None else LayerInput(**vars(layer.input)),
            scale=layer.scale,
        )

    def _mixer(self, weights: MixerWeights | None, number: int) -> GroupedAttention | LatentAttention | Recurrence | None:
        """`DecoderWeights` checks that every weight is in panels."""
        delta, mamba = self.config.delta, self.config.mamba
        if isinstance(weights, LatentWeights):
            return LatentAttention(**vars(weights) | {"indexer": weights.indexer and _indexer(weights.indexer)})
        if isinstance(weights, DeltaWeights) and delta is not None:
            return DeltaRule(**vars(weights), key_heads=delta.key_heads, tiled=delta.tiled)
        if isinstance(weights, MambaWeights) and mamba is not None:
            return Mamba(**vars(weights), groups=mamba.groups)
        if isinstance(weights, ConvolutionWeights):
            return ShortConvolution(**vars(weights))
        return None if weights is None else self._grouped_attention(weights, number)

    def _grouped_attention(self, weights: MixerWeights, number: int) -> GroupedAttention:
        grouped, rope = self.config.grouped, self.config.grouped.rope_index(number)
        grows = [i for i, each in enumerate(self._layer_ropes) if each.query_growth]
        return GroupedAttention(
            **vars(weights),
            norms_after_rope=grouped.query_key_norm == "head_after_rope",
            window=grouped.window(number),
            rope=rope,
            query_rope=len(self._layer_ropes) + grows.index(rope) if rope in grows else None,
            score_cap=grouped.score_cap,
            value_norm=grouped.value_norm,
            keys_of=None if grouped.source(number) == number else grouped.source(number),
            kv_heads=self.config.kv_heads_of(number),
            head_dim=step_width(self.config.head_dim_of(number)),
            head_values=self.config.head_dim_of(number),
        )

    def new_pages(self, count: int) -> SlabPages:
        return SlabPages(self.page_layout, count)

    def logits(self, batch: TokenBatch, pages: Pages, hidden: np.ndarray | None = None) -> np.ndarray:
        assert isinstance(pages, SlabPages)
        long = batch.long
        if long is None or long.all():
            return self._step(batch, pages, long is not None, hidden)
        logits = np.empty((len(batch.wanted), self.config.vocab_size), np.float32)
        for kind in (False, True):  # a call has one table; sequences do not depend on each other
            chosen, rows = long == kind, long[batch.wanted] == kind
            place = np.cumsum(chosen) - 1  # of a token among those of its kind
            tokens, sequence, positions = (array[chosen] for array in batch[:3])
            wanted = place[batch.wanted[rows]]
            part = batch._replace(tokens=tokens, sequence=sequence, positions=positions, wanted=wanted)
            if batch.kept_rows is not None:
                part = part._replace(kept_rows=batch.kept_rows[chosen])
            own = None if hidden is None else np.empty_like(hidden[chosen])
            logits[rows] = self._step(part, pages, kind, own)
            if hidden is not None:
                hidden[chosen] = own
        return logits

    def _step(self, batch: TokenBatch, pages: SlabPages, long: bool, hidden: np.ndarray | None) -> np.ndarray:
        tokens, sequence, positions, page_table, wanted = batch[:5]
        sin, cos = self._rope_up_to(PAGE * page_table.shape[1], long)
        # Not through the public function: the core checks these arrays too, and the checks in Python cost 3 % of a token.
        call = Call(
            self.native_weights, tokens, sequence, positions, sin, cos, pages.keys, pages.values, page_table, wanted, hidden
        )
        if batch.slots is not None:
            call = call._replace(states=pages.states, slots=batch.slots, into=batch.into)
        if batch.kept is not None:
            call = call._replace(kept=batch.kept, kept_rows=batch.kept_rows)
        if pages.index is not None:
            call = call._replace(index_keys=pages.index)
        if self._inputs is not None:
            x = scale(gather_rows(self.native_weights.embedding, tokens), self.config.embedding_scale)
            call = call._replace(layer_inputs=inputs_of_layers(tokens, x, self._inputs, self.config))
        return run(OP, "cpu", cpu.forward, call)

    def replay(self, kept: Sequence[np.ndarray], states: np.ndarray, slots: np.ndarray, into: np.ndarray) -> None:
        run("replay_states", "cpu", cpu.replay_states, self.native_weights, kept, states, slots, into)

    def _rope_up_to(self, positions: int, long: bool) -> tuple[np.ndarray, np.ndarray]:
        """The rope table of at least this many positions. It grows by doubling; a thread keeps the table that it was given."""
        rope = self._ropes[long]
        if rope[0].shape[1] < positions:
            rope = self._ropes[long] = self._table(max(positions, 2 * rope[0].shape[1]), long)
        return rope

    def _table(self, positions: int, long: bool) -> tuple[np.ndarray, np.ndarray]:
        """sin and cos (ropes, positions, pairs of a head): of the ropes, then of queries for those that have other ones."""
        at, pairs = np.arange(positions), None if self.config.latent_attention else self._head_dim // 2
        tables = [rope.table(at, np.full(positions, long), pairs) for rope in self._layer_ropes]
        tables += [rope.of_queries(tables[i], at) for i, rope in enumerate(self._layer_ropes) if rope.query_growth]
        sin, cos = (np.stack(part) for part in zip(*tables, strict=True))
        return sin, cos


def page_layout(config: Config, cache_dtype: str, *, byte_index: bool = False) -> PageLayout:
    latent, dtype = config.latent_attention, CACHE_DTYPES[cache_dtype]
    if latent is None:
        return grouped_layout(config.cache_layers, config.kv_heads, step_head_dim(config), dtype)
    layout, indexer = latent_layout(config.layers, latent.latent_dim, latent.rope_dim, dtype), latent.indexer
    if indexer is None:
        return layout
    index_dtype = CACHE_DTYPES["int8"] if byte_index else layout.key_dtype
    return replace(layout, index=(indexer.layers, *page_shape(index_dtype, indexer.head_dim)), index_dtype=index_dtype)


def choose_cache_dtype(types: Set[str], dtype: str = "auto") -> str:
    """Resolves `cache_dtype` "auto". types: of the file's weights. In a step with more precise weights and float32 activations,
    rounding the cache to bfloat16 would be the largest error."""
    return "float16" if dtype == "auto" and types <= {"F16", "F32"} else "bfloat16"


def step_head_dim(config: Config) -> int:
    """The size to which the native step pads the widest heads of grouped-query attention."""
    return step_width(config.head_dim)


def step_width(head_dim: int) -> int:
    """The size to which the native step pads heads: a multiple of 16."""
    return -(-head_dim // 16) * 16


def _sizes(latent: LatentConfig) -> LatentSizes:
    widths = latent.nope_dim, latent.rope_dim, latent.latent_dim, latent.value_dim
    x = latent.indexer
    return LatentSizes(*widths, latent.norm_eps, *(() if x is None else (x.selected, x.heads, x.head_dim)))


def _indexer(weights: IndexerWeights) -> Indexer:
    return Indexer(**vars(weights) | {"by_head": LinearPanels.pack(weights.by_head)})


def _feed_forward(
    weights: FeedForward | ExpertWeights | SideBySideWeights | None, config: Config
) -> FeedForward | Mixture | SideBySide | None:
    if weights is None or isinstance(weights, FeedForward):
        return weights
    if isinstance(weights, SideBySideWeights):
        return SideBySide(**vars(weights) | {"experts": _mixture(weights.experts, config)})
    return _mixture(weights, config)


def _mixture(weights: ExpertWeights, config: Config) -> Mixture:
    assert config.experts is not None
    gate = None if weights.shared_gate is None else LinearPanels.pack(weights.shared_gate)
    dense = {"router": LinearPanels.pack(weights.router), "shared_gate": gate}
    return Mixture(**vars(weights) | dense, rule=config.experts.rule)
