"""The forward pass: hidden states of tokens, whichever sequences they belong to, through the operators."""

from __future__ import annotations

import numpy as np

from decodestep.cache import LatentCache
from decodestep.models.convert import Config, Weights
from decodestep.ops.linear import linear
from decodestep.ops.linear.cpu import take_rows
from decodestep.ops.mla_attention import mla_attention
from decodestep.ops.mla_prolog import mla_prolog
from decodestep.ops.rms_norm import rms_norm
from decodestep.ops.swiglu import swiglu


class Decoder:
    """A decoder of the MLA form. Each token's result depends on its own sequence alone, to the bit."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.config: Config = weights.config

    def new_cache(self, capacities: list[int]) -> LatentCache:
        config = self.config
        return LatentCache(config.layers, config.latent, config.rope, capacities)

    def forward(self, tokens: np.ndarray, sequence: np.ndarray, positions: np.ndarray, cache: LatentCache) -> np.ndarray:
        """Hidden states (T, He) of T tokens at `positions` of their sequences; their latents join the cache.

        What stands before a token in its sequence must be in the cache or come earlier in the same call.
        """
        config = self.config
        sin, cos = self._rope(positions)
        slots, lengths = cache.slots(sequence, positions), positions + 1
        x = take_rows(self.weights.embedding, tokens)
        for layer, kv, kr in zip(self.weights.layers, cache.kv, cache.kr, strict=True):
            query = mla_prolog(
                rms_norm(x, layer.attention_norm, eps=config.norm_eps),
                None,
                layer.w_uq_qr,
                layer.w_uk,
                layer.w_dkv_kr,
                None,
                None,
                sin,
                cos,
                slots,
                kv,
                kr,
                rope_groups=config.groups,
                need_query=False,
            )
            attended = mla_attention(
                None,
                query.query_rope,
                kv,
                kr,
                cache.block_table,
                lengths,
                scale=config.scale,
                sequence=sequence,
                groups=config.groups,
            )
            x += linear(attended.reshape(len(x), -1), layer.w_o)
            h = rms_norm(x, layer.ffn_norm, eps=config.norm_eps)
            x += linear(swiglu(linear(h, layer.w_gate), linear(h, layer.w_up)), layer.w_down)
        return x

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """Logits (T, V) of hidden states (T, He)."""
        return linear(rms_norm(hidden, self.weights.norm, eps=self.config.norm_eps), self.weights.output)

    def _rope(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """sin and cos of (T, Dr): every group has the same frequencies, and both halves are alike."""
        angles = positions.astype(np.float32)[:, None] * self.weights.inverse_frequencies
        repeat = (1, 2 * self.config.groups)
        return np.tile(np.sin(angles), repeat), np.tile(np.cos(angles), repeat)
