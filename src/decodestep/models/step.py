"""A decoder whose whole step is one call of the native core, on weights packed in the order in which it reads them."""

from __future__ import annotations

import numpy as np

from decodestep import _native
from decodestep._base.arrays import bits
from decodestep._base.dispatch import run, threads
from decodestep.models.config import Config, Layer, Weights
from decodestep.models.decoder import Decoder
from decodestep.models.kv_cache import GroupCache, PagedCache
from decodestep.models.layers import rope_table
from decodestep.ops.linear import Format, LinearPanels, PackedWeight

# What the weights become, by dtype; None: they keep the file's format.
PANEL_FORMATS = {"auto": None, "bfloat16": Format.BF16, "int8": Format.Q8_0}


def obstacle(config: Config) -> str | None:
    """Why the native step cannot run a model of these sizes, or None."""
    sizes = {
        "hidden size": config.hidden,
        "feed-forward size": config.feed_forward,
        "query size": config.heads * config.head_dim,
    }
    if config.head_dim % 16:
        return f"head size {config.head_dim} is no multiple of 16"
    return next((f"{name} {size} is no multiple of 32" for name, size in sizes.items() if size % 32), None)


class StepDecoder(Decoder):
    """Weights in panels, their own blocks times activations of bytes where they have blocks; attention in bfloat16.

    weights: those of `convert`, each packed but for the embedding.
    """

    description = "one native call a step"

    def __init__(self, weights: Weights) -> None:
        self.config = config = weights.config
        self._inverse_frequencies = weights.inverse_frequencies
        self._rope = rope_table(np.arange(0), weights.inverse_frequencies)
        layers = [_layer(layer) for layer in weights.layers]
        self.weight_bytes = sum(panels[0].nbytes for layer in layers for panels in layer[2])
        output = _panels(weights.output)
        self.weight_bytes += output[0].nbytes
        self._native = _native.Decoder(
            config.heads,
            config.groups,
            config.head_dim,
            config.feed_forward,
            config.norm_eps,
            config.scale,
            layers,
            weights.norm,
            output,
            weights.embedding.rows,
            int(weights.embedding.format),
        )

    def new_cache(self, capacities: list[int]) -> GroupCache:
        config = self.config
        cache = GroupCache(config.layers, config.groups, config.head_dim, capacities)
        if cache.capacity > len(self._rope[0]):
            self._rope = rope_table(np.arange(cache.capacity), self._inverse_frequencies)
        return cache

    def logits(
        self, tokens: np.ndarray, sequence: np.ndarray, positions: np.ndarray, cache: PagedCache, wanted: np.ndarray
    ) -> np.ndarray:
        assert isinstance(cache, GroupCache)
        out = np.empty((len(wanted), self.config.vocab_size), np.float32)
        run(
            "decoder_forward",
            "cpu",
            _native.decoder_forward,
            self._native,
            _ids(tokens),
            _ids(sequence),
            _ids(positions),
            *self._rope,
            bits(cache.keys),
            bits(cache.values),
            cache.block_table,
            _ids(wanted),
            out,
            threads(),
        )
        return out


def _layer(layer: Layer) -> tuple[np.ndarray, np.ndarray, list[tuple[np.ndarray, int, int]]]:
    weights = (layer.w_uq_qr, layer.w_dkv_kr, layer.w_o, layer.w_gate, layer.w_up, layer.w_down)
    return layer.attention_norm, layer.ffn_norm, [_panels(weight) for weight in weights]


def _panels(weight: PackedWeight | LinearPanels) -> tuple[np.ndarray, int, int]:
    assert isinstance(weight, LinearPanels)
    return weight.data, int(weight.format), weight.outputs


def _ids(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, np.int64)
