"""Latent attention of one layer in float32, and grouped-query attention without options as a case of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from decodestep.models.config import Config
from decodestep.models.decoder import TokenBatch
from decodestep.models.layer_weights import GroupedWeights, LatentWeights, Weight
from decodestep.ops.mla_attention import mla_attention
from decodestep.ops.mla_prolog import mla_prolog
from decodestep.weights.packed import PackedWeight


class PrologWeights(NamedTuple):
    """A layer's weights as `mla_prolog` takes them after the tokens, and w_uv of `mla_attention`.

    biased: whether the products of the tokens have one more input, which is 1 for every token.
    """

    w_dq: Weight | None
    w_uq_qr: Weight
    w_uk: np.ndarray
    w_dkv_kr: Weight
    gamma_cq: np.ndarray | None
    gamma_ckv: np.ndarray | None
    w_uv: Weight | None
    biased: bool


def prolog_weights(w: GroupedWeights | LatentWeights, config: Config) -> PrologWeights:
    """A layer's weights for `mla_prolog`; those of grouped-query attention must have no biases and no norms of heads."""
    if isinstance(w, GroupedWeights):
        no_keys_up = np.zeros((config.heads, 0, config.latent_dim), np.float32)
        return PrologWeights(None, w.query, no_keys_up, _values_keys(w), None, None, None, False)
    down, query, latent, biased = w.query_down, w.query, w.latent, w.latent_bias is not None
    if biased:
        latent = _with_bias(latent, w.latent_bias)
        if down is None:
            query = _with_bias(query, None)
        else:
            down = _with_bias(down, w.query_down_bias)
    return PrologWeights(down, query, _key_up(w.key_up, config), latent, w.query_norm, w.latent_norm, w.value_up, biased)


def attend(
    h: np.ndarray,
    weights: PrologWeights,
    config: Config,
    cache: tuple[np.ndarray, np.ndarray],
    batch: TokenBatch,
    slots: np.ndarray,
    rope: tuple[np.ndarray, np.ndarray],
) -> np.ndarray:
    """The attention output of every token, (T, N * Dv); writes its latent and key.

    h: float32 (T, He), normalised. cache: the layer's part of `LatentPages`. slots: int64 (T,), the places of the tokens there.
    rope: sin and cos, float32 (T, Dr).
    """
    kv, kr = cache
    latent = config.latent_attention
    groups = 1 if latent else config.kv_heads
    projected = mla_prolog(
        np.concatenate([h, np.ones((len(h), 1), np.float32)], axis=1) if weights.biased else h,
        *weights[:6],
        *rope,
        slots,
        kv,
        kr,
        rmsnorm_epsilon_cq=latent.norm_eps if latent else 0.0,
        rmsnorm_epsilon_ckv=latent.norm_eps if latent else 0.0,
        rope_groups=groups,
        need_query=latent is not None,
    )
    return mla_attention(
        projected.query,
        projected.query_rope,
        kv,
        kr,
        batch.page_table,
        batch.positions + 1,
        scale=config.scale,
        sequence=batch.sequence,
        groups=groups,
        w_uv=weights.w_uv,
    ).reshape(len(h), -1)


def _values_keys(w: GroupedWeights) -> Weight:
    """One weight of both: float32 if they have two formats."""
    return w.values_keys if w.keys is None else PackedWeight.widened(_rows(w.values_keys), _rows(w.keys))


def _with_bias(weight: Weight, bias: np.ndarray | None) -> PackedWeight:
    values = _rows(weight).dense()
    row = np.zeros(values.shape[1], np.float32) if bias is None else bias
    return PackedWeight.from_array(np.concatenate([values, row[None]]))


def _key_up(weight: Weight, config: Config) -> np.ndarray:
    """float32 (N, D, Hckv)."""
    values = _rows(weight).values()
    return np.ascontiguousarray(values.reshape(config.heads, config.latent_dim, values.shape[1]).swapaxes(1, 2))


def _rows(weight: Weight) -> PackedWeight:
    assert isinstance(weight, PackedWeight)
    return weight
