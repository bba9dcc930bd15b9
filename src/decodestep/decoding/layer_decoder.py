"""A decoder that calls the operators layer by layer: for models of any size, and the reference of the native step."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from decodestep.decoding import grouped_layer, latent_layer
from decodestep.decoding.config import Config
from decodestep.decoding.decoder import Decoder, TokenBatch
from decodestep.decoding.kv_cache import PAGE, LatentPages, PageLayout, Pages, float32_layout
from decodestep.decoding.layer_weights import ExpertWeights, GroupedWeights, LatentWeights, Weights
from decodestep.ops.expert_router import expert_router
from decodestep.ops.linear import linear
from decodestep.ops.linear.cpu import gather_rows
from decodestep.ops.linear.reference import with_bias
from decodestep.ops.mixture_of_experts import mixture_of_experts
from decodestep.ops.mixture_of_experts.blocks import feed_forward
from decodestep.ops.rms_norm import rms_norm
from decodestep.ops.swiglu import swiglu
from decodestep.weights.feed_forward import FeedForward


class LayerDecoder(Decoder):
    """Weights in the file's formats, activations and cache in float32.

    why: the reason for running layer by layer, for `description`.
    """

    def __init__(self, weights: Weights, why: str = "dtype float32") -> None:
        self.weights = weights
        self.config = config = weights.config
        latents = [layer.attention for layer in weights.layers if isinstance(layer.attention, LatentWeights)]
        self._prologs = latent_layer.prolog_weights(latents, config) if latents else []
        self.description = f"layer by layer, float32 activations ({why}){left_out(config)}"
        self.cache_dtype = "float32"
        self.long_after = weights.ropes[0].long_after
        self.page_layout = page_layout(config)

    def new_pages(self, count: int) -> LatentPages:
        return LatentPages(self.page_layout, count)

    def logits(self, batch: TokenBatch, pages: Pages) -> np.ndarray:
        assert isinstance(pages, LatentPages)
        hidden = rms_norm(self.forward(batch, pages)[batch.wanted], self.weights.norm, eps=self.config.norm_eps)
        return linear(_scale(hidden, 1 / self.config.logits_divisor), self.weights.output)

    def forward(self, batch: TokenBatch, pages: LatentPages) -> np.ndarray:
        """Hidden states (T, He) after the last layer; writes keys and values to the pages."""
        config = self.config
        ropes = [rope.table(batch.positions, batch.long) for rope in self.weights.ropes]
        slots = batch.page_table[batch.sequence, batch.positions // PAGE] * PAGE + batch.positions % PAGE
        x = _scale(gather_rows(self.weights.embedding, batch.tokens), config.embedding_scale)
        for i, layer in enumerate(self.weights.layers):
            h = rms_norm(x, layer.attention_norm, eps=config.norm_eps)
            weights, cache, rope = layer.attention, (pages.kv[i], pages.kr[i]), ropes[config.grouped.rope_index(i)]
            if isinstance(weights, GroupedWeights):
                attended = grouped_layer.attend(h, weights, config, cache, batch, slots, rope, window=config.grouped.window(i))
            else:
                attended = latent_layer.attend(h, self._prologs[i], cache, batch, slots, rope, scale=config.scale)
            added = with_bias(linear(attended, weights.output), weights.output_bias)
            x += _scale(self._normalise(added, layer.attention_post_norm), config.residual_scale)
            h = rms_norm(x, layer.ffn_norm, eps=config.norm_eps)
            x += _scale(self._normalise(self._feed_forward(h, layer.feed_forward), layer.ffn_post_norm), config.residual_scale)
        return x

    def _normalise(self, added: np.ndarray, norm: np.ndarray | None) -> np.ndarray:
        return added if norm is None else rms_norm(added, norm, eps=self.config.norm_eps)

    def _feed_forward(self, h: np.ndarray, weights: FeedForward | ExpertWeights) -> np.ndarray:
        if isinstance(weights, FeedForward):
            return _dense(h, weights)
        experts = self.config.experts
        assert experts is not None
        routes = expert_router(linear(h, weights.router), bias=weights.bias, **asdict(experts.rule))
        mixed = mixture_of_experts(h, routes.experts, routes.weights, weights.routed)
        return mixed if weights.shared is None else mixed + _dense(h, weights.shared)


def page_layout(config: Config) -> PageLayout:
    return float32_layout(config.layers, config.latent_dim, config.rope_dim)


def left_out(config: Config) -> str:
    """What a description says about layers of a checkpoint that are not run."""
    count = config.skipped_layers
    return f"; {count} layer{'s' if count > 1 else ''} for next-token prediction left out" if count else ""


def _dense(h: np.ndarray, block: FeedForward) -> np.ndarray:
    return feed_forward(h, block, linear, swiglu)


def _scale(x: np.ndarray, factor: float) -> np.ndarray:
    return x if factor == 1 else x * np.float32(factor)
