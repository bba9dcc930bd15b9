"""A decoder that calls the operators layer by layer: for models of any size, and the reference of the native step."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from decodestep.decoding import grouped_layer, index_layer, latent_layer, recurrent_layer
from decodestep.decoding.config import Config
from decodestep.decoding.decoder import Decoder, TokenBatch
from decodestep.decoding.float32_layer import inputs_of_layers, normalise, run_layer, scale, soft_capped
from decodestep.decoding.kv_cache import PAGE, LatentPages, PageLayout, Pages, float32_layout
from decodestep.decoding.layer_weights import (
    ConvolutionWeights,
    DeltaWeights,
    GroupedWeights,
    LatentWeights,
    MambaWeights,
    MixerWeights,
    Weights,
)
from decodestep.decoding.next_tokens import NextTokenLayers
from decodestep.decoding.recurrent_layer import Rows
from decodestep.ops.linear import linear
from decodestep.ops.linear.cpu import gather_rows


class LayerDecoder(Decoder):
    """Weights in the file's formats, activations and cache in float32.

    why: the reason for running layer by layer, for `description`.
    """

    def __init__(self, weights: Weights, why: str = "dtype float32") -> None:
        self.weights = weights
        self.config = config = weights.config
        self.values = tuple(getattr(weights, field.name) for field in fields(weights) if field.name != "config")
        latents = [layer.mixer for layer in weights.layers if isinstance(layer.mixer, LatentWeights)]
        self._prologs = latent_layer.prolog_weights(latents, config) if latents else []
        self.description = f"layer by layer, float32 activations ({why}){next_token_text(config)}"
        self.cache_dtype = "float32"
        self.long_after = weights.ropes[0].long_after
        self.page_layout = page_layout(config)
        self.next_tokens = NextTokenLayers(weights) if weights.next_tokens else None

    def new_pages(self, count: int) -> LatentPages:
        return LatentPages(self.page_layout, count)

    def logits(self, batch: TokenBatch, pages: Pages, hidden: np.ndarray | None = None) -> np.ndarray:
        assert isinstance(pages, LatentPages)
        config, x = self.config, self.forward(batch, pages)
        if hidden is not None:
            hidden[:] = normalise(x, self.weights.norm, config)
        read = scale(normalise(x[batch.wanted], self.weights.norm, config), 1 / config.logits_divisor)
        return soft_capped(linear(read, self.weights.output), config.logits_cap)

    def forward(self, batch: TokenBatch, pages: LatentPages) -> np.ndarray:
        """Hidden states (T, He) after the last layer; writes keys and values to the pages."""
        config = self.config
        pairs = None if config.latent_attention else config.head_dim // 2
        made = self.weights.inputs
        ropes = [rope.table(batch.positions, batch.long, pairs) for rope in self.weights.ropes]
        of_queries = [one.of_queries(table, batch.positions) for one, table in zip(self.weights.ropes, ropes, strict=True)]
        slots = batch.page_table[batch.sequence, batch.positions // PAGE] * PAGE + batch.positions % PAGE
        x = scale(gather_rows(self.weights.embedding, batch.tokens), config.embedding_scale)
        given = None if made is None else inputs_of_layers(batch.tokens, x, made, config)
        states, rows = [], None
        select = None if config.latent_attention is None else index_layer.selector(config, batch, slots)
        if self.state_layout is not None:
            assert pages.states is not None
            states, rows = self.state_layout.views(pages.states), Rows.of(batch)
        for i, layer in enumerate(self.weights.layers):

            def mix(h: np.ndarray, i: int = i, weights: MixerWeights | None = layer.mixer) -> np.ndarray:
                if isinstance(weights, DeltaWeights | MambaWeights | ConvolutionWeights):
                    assert rows is not None
                    return recurrent_layer.mix(h, weights, config, states[i], rows)
                cached, index = config.cache_layer(i), config.grouped.rope_index(i)
                cache = (pages.kv[cached], pages.kr[cached])
                rope = ropes[index]
                if isinstance(weights, GroupedWeights):
                    return grouped_layer.attend(h, weights, config, cache, batch, slots, (of_queries[index], rope), layer=i)
                chosen = None
                if select is not None:
                    assert isinstance(weights, LatentWeights)
                    chosen = select(h, weights, pages.index[config.index_layer(i)], rope)
                return latent_layer.attend(h, self._prologs[i], cache, batch, slots, rope, scale=config.scale, chosen=chosen)

            run_layer(x, layer, config, mix, None if given is None else given[:, i])
        return x


def page_layout(config: Config) -> PageLayout:
    latent = config.latent_attention
    indexer = None if latent is None else latent.indexer
    index = () if indexer is None else (indexer.layers, indexer.head_dim)
    return float32_layout(config.cache_layers, config.latent_dim, config.rope_dim, index)


def next_token_text(config: Config) -> str:
    """What a description says about layers for next-token prediction: which draft, and which are not run."""
    drafting, skipped = config.next_token_layers, config.skipped_layers
    counts = {"drafts" if drafting == 1 else "draft": drafting, "left out": skipped}
    return "".join(f"; {n} layer{'s' * (n > 1)} for next-token prediction {what}" for what, n in counts.items() if n)
