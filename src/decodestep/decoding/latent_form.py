"""Grouped-query attention as multi-head latent attention: sizes and weights with which the latter's stages compute the former.

With n_kv key/value heads of width d, exactly:
    latent = the value heads side by side, Hckv = n_kv * d, no norm
    shared rope key = the key heads after their rope side by side, Dr = n_kv * d, the same frequencies for each head
    query head, rope part = its own vector in the columns of its key head, zero elsewhere; the part without rope is zero
    values of a head = its value head's columns of the latent
    scale = the model's, which is 1 / sqrt(d) in most
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from decodestep._base.arrays import BFLOAT16
from decodestep.decoding.config import Config, LatentConfig
from decodestep.decoding.rope import Rope
from decodestep.weights.packed import PackedWeight

# The least width without rope that the stages take.
_NOPE = 32
# A norm divides by sqrt(mean square + epsilon). With this epsilon that is 2^40 whatever the latent, and times a gamma of 2^40
# every value is what it was, to the bit.
_ROOT = 2.0**40
NO_NORM_EPS = _ROOT**2


def latent_config(config: Config) -> Config:
    """The sizes of a model with grouped-query attention in this form."""
    keys = config.kv_heads * config.head_dim
    attention = LatentConfig(
        None,
        latent_dim=keys,
        nope_dim=_NOPE,
        rope_dim=keys,
        value_dim=config.head_dim,
        scale=config.scale,
        norm_eps=NO_NORM_EPS,
    )
    return replace(config, kv_heads=config.heads, head_dim=_NOPE + keys, latent_attention=attention)


def latent_rope(rope: Rope, config: Config) -> Rope:
    """The rope of all key heads of the model, side by side. config: as the checkpoint has it."""
    long = rope.long_frequencies
    return replace(
        rope,
        inverse_frequencies=np.tile(rope.inverse_frequencies, config.kv_heads),
        long_frequencies=None if long is None else np.tile(long, config.kv_heads),
    )


def spread_queries(query: PackedWeight, config: Config) -> PackedWeight:
    """(He, N * D) -> (He, N * (nope + n_kv * d)), in the weight's own format: in all of them bytes of zero are zeros."""
    heads, groups, d = config.heads, config.kv_heads, config.head_dim
    rows = np.zeros((heads, _NOPE + groups * d, query.rows.shape[1]), np.uint8)
    for n, own in enumerate(query.rows.reshape(heads, d, -1)):
        first = _NOPE + n // (heads // groups) * d
        rows[n, first : first + d] = own
    return replace(query, rows=rows.reshape(-1, rows.shape[2]))


def no_norm(width: int) -> np.ndarray:
    """gamma of a norm that changes nothing, with `NO_NORM_EPS` as its epsilon."""
    return np.full(width, _ROOT, np.float32)


def no_keys_up(config: Config) -> PackedWeight:
    """The part without rope reads nothing from the latent."""
    return PackedWeight.from_array(np.zeros((_NOPE, config.heads * config.kv_heads * config.head_dim), BFLOAT16))


def chosen_values(config: Config) -> PackedWeight:
    """Of every query head the columns of the latent that are its values."""
    heads, groups, d = config.heads, config.kv_heads, config.head_dim
    chosen = np.zeros((groups, d, heads, d), BFLOAT16)
    for n in range(heads):
        chosen[n // (heads // groups), :, n] = np.eye(d)
    return PackedWeight.from_array(chosen.reshape(groups * d, heads * d))
