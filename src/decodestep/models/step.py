"""A decoder whose whole step is one call of `decoder_forward`, on weights in panels."""

from __future__ import annotations

import numpy as np

from decodestep._base.dispatch import run
from decodestep.models.config import Config, Layer, Weights
from decodestep.models.decoder import Decoder
from decodestep.models.kv_cache import GroupCache, PagedCache
from decodestep.models.layers import rope_table
from decodestep.ops.decoder_forward import DecoderWeights, LayerWeights, cpu
from decodestep.ops.decoder_forward.arguments import OP, Call
from decodestep.ops.decoder_forward.cpu import size_obstacle
from decodestep.ops.linear import Format, LinearPanels, PackedWeight

# What the weights become, by dtype; None: they keep the file's format.
PANEL_FORMATS = {"auto": None, "bfloat16": Format.BF16, "int8": Format.Q8_0}


def obstacle(config: Config) -> str | None:
    """Why the native step cannot run a model of these sizes, or None."""
    return size_obstacle(hidden=config.hidden, heads=config.heads, head_dim=config.head_dim, feed_forward=config.feed_forward)


class StepDecoder(Decoder):
    """Runs a step as one native call: quantised weights times quantised activations, attention in bfloat16.

    weights: those of `convert`, each as `LinearPanels` but for the embedding.
    """

    description = "one native call a step"

    def __init__(self, weights: Weights) -> None:
        self.config = config = weights.config
        self._inverse_frequencies = weights.inverse_frequencies
        self._rope = rope_table(np.arange(0), weights.inverse_frequencies)
        self._weights = DecoderWeights(
            embedding=weights.embedding,
            layers=tuple(_layer(layer) for layer in weights.layers),
            norm=weights.norm,
            logits=_panels(weights.output),
            heads=config.heads,
            kv_heads=config.groups,
            head_dim=config.head_dim,
            norm_eps=config.norm_eps,
            scale=config.scale,
        )
        self.weight_bytes = self._weights.nbytes

    def new_cache(self, capacities: list[int]) -> GroupCache:
        config = self.config
        cache = GroupCache(config.layers, config.groups, config.head_dim, capacities)
        rope = self._rope
        if cache.capacity > len(rope[0]):
            rope = self._rope = rope_table(np.arange(cache.capacity), self._inverse_frequencies)
        cache.rope = rope  # its own: another thread may put a shorter table in place of the decoder's
        return cache

    def logits(
        self, tokens: np.ndarray, sequence: np.ndarray, positions: np.ndarray, cache: PagedCache, wanted: np.ndarray
    ) -> np.ndarray:
        assert isinstance(cache, GroupCache)
        # Not through the public function: the core checks these arrays too, and the checks in Python cost 3 % of a token.
        sin, cos = cache.rope
        call = Call(self._weights, tokens, sequence, positions, sin, cos, cache.keys, cache.values, cache.block_table, wanted)
        return run(OP, "cpu", cpu.forward, call)


def _layer(layer: Layer) -> LayerWeights:
    return LayerWeights(
        attention_norm=layer.attention_norm,
        query=_panels(layer.w_uq_qr),
        values_keys=_panels(layer.w_dkv_kr),
        output=_panels(layer.w_o),
        ffn_norm=layer.ffn_norm,
        gate=_panels(layer.w_gate),
        up=_panels(layer.w_up),
        down=_panels(layer.w_down),
    )


def _panels(weight: PackedWeight | LinearPanels) -> LinearPanels:
    assert isinstance(weight, LinearPanels)
    return weight
