"""A decoder whose whole step is one call of `decoder_forward`, on weights in panels."""

from __future__ import annotations

import numpy as np

from decodestep._base.dispatch import run
from decodestep.models.config import Config, Layer, Weights
from decodestep.models.decoder import Decoder
from decodestep.models.kv_cache import GroupPages, Pages
from decodestep.models.layers import rope_table
from decodestep.ops.decoder_forward import DecoderWeights, GroupedAttention, LayerWeights, cpu
from decodestep.ops.decoder_forward.arguments import OP, PAGE, Call
from decodestep.ops.decoder_forward.cpu import size_obstacle
from decodestep.ops.linear import Format, LinearPanels, PackedWeight
from decodestep.weights.feed_forward import FeedForward

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
        self._rope = rope_table(np.arange(1024), weights.inverse_frequencies)
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
        self.page_bytes = GroupPages.bytes_of_a_page(config.layers, config.groups, config.head_dim)

    def new_pages(self, count: int) -> GroupPages:
        config = self.config
        return GroupPages(config.layers, config.groups, config.head_dim, count)

    def logits(
        self,
        tokens: np.ndarray,
        sequence: np.ndarray,
        positions: np.ndarray,
        pages: Pages,
        page_table: np.ndarray,
        wanted: np.ndarray,
    ) -> np.ndarray:
        assert isinstance(pages, GroupPages)
        sin, cos = self._rope_up_to(PAGE * page_table.shape[1])
        # Not through the public function: the core checks these arrays too, and the checks in Python cost 3 % of a token.
        call = Call(self._weights, tokens, sequence, positions, sin, cos, pages.keys, pages.values, page_table, wanted)
        return run(OP, "cpu", cpu.forward, call)

    def _rope_up_to(self, positions: int) -> tuple[np.ndarray, np.ndarray]:
        """The rope table of at least so many positions. It grows by doubling; a thread keeps the one that it was given."""
        rope = self._rope
        if len(rope[0]) < positions:
            rope = self._rope = rope_table(np.arange(max(positions, 2 * len(rope[0]))), self._inverse_frequencies)
        return rope


def _layer(layer: Layer) -> LayerWeights:
    return LayerWeights(
        attention_norm=layer.attention_norm,
        attention=GroupedAttention(_panels(layer.w_uq_qr), _panels(layer.w_dkv_kr), _panels(layer.w_o)),
        ffn_norm=layer.ffn_norm,
        feed_forward=FeedForward(_panels(layer.w_gate), _panels(layer.w_up), _panels(layer.w_down)),
    )


def _panels(weight: PackedWeight | LinearPanels) -> LinearPanels:
    assert isinstance(weight, LinearPanels)
    return weight
