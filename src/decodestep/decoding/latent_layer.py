"""Multi-head latent attention of one layer in float32, by `mla_prolog` and `mla_attention`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from decodestep.decoding import index_layer, latent_form
from decodestep.decoding.config import Config
from decodestep.decoding.decoder import TokenBatch
from decodestep.decoding.layer_weights import LatentWeights, Weight
from decodestep.ops.decoder_forward.rope_pairs import turn_pairs
from decodestep.ops.linear import linear
from decodestep.ops.linear.reference import with_bias
from decodestep.ops.mla_attention import mla_attention
from decodestep.ops.mla_attention.reference import values_up
from decodestep.ops.mla_prolog import mla_prolog
from decodestep.ops.rms_norm import rms_norm
from decodestep.ops.sparse_mla_attention import sparse_mla_attention
from decodestep.weights.packed import PackedWeight


class PrologWeights(NamedTuple):
    """A layer's weights as `mla_prolog` takes them after the tokens, the epsilons of its norms, and w_uv of `mla_attention`.

    biased: whether the products of the tokens have one more input, which is 1 for every token.
    """

    w_dq: Weight
    w_uq_qr: Weight
    w_uk: np.ndarray
    w_dkv_kr: Weight
    gamma_cq: np.ndarray
    gamma_ckv: np.ndarray
    eps_cq: float
    eps_ckv: float
    w_uv: Weight
    biased: bool


def prolog_weights(layers: Sequence[LatentWeights], config: Config) -> list[PrologWeights]:
    """The layers' weights for `mla_prolog`, which compresses every query.

    Where the model does not, that is a product with an identity, one for all layers, and a norm that changes nothing.
    """
    sizes, width = config.latent_attention, layers[0].query.shape[0]
    assert sizes is not None
    identity = None
    if sizes.query_rank is None:
        identity = PackedWeight.from_array(np.eye(width + sizes.biases, width, dtype=np.float16))
    return [
        PrologWeights(
            w_dq=identity or _with_bias(w.query_down, w.query_down_bias),
            w_uq_qr=w.query,
            w_uk=_key_up(w.key_up, config),
            w_dkv_kr=_with_bias(w.latent, w.latent_bias),
            gamma_cq=latent_form.no_norm(width) if w.query_norm is None else w.query_norm,
            gamma_ckv=w.latent_norm,
            eps_cq=latent_form.NO_NORM_EPS if w.query_norm is None else sizes.norm_eps,
            eps_ckv=sizes.norm_eps,
            w_uv=w.value_up,
            biased=w.latent_bias is not None,
        )
        for w in layers
    ]


def attend(
    h: np.ndarray,
    weights: PrologWeights,
    cache: tuple[np.ndarray, np.ndarray],
    batch: TokenBatch,
    slots: np.ndarray,
    rope: tuple[np.ndarray, np.ndarray],
    *,
    scale: float,
    chosen: np.ndarray | None = None,
) -> np.ndarray:
    """The attention output of every token, (T, N * Dv); writes its latent and key.

    h: float32 (T, He), normalised. cache: the layer's part of `LatentPages`. slots: int64 (T,), the places of the tokens there.
    rope: sin and cos, float32 (T, Dr / 2). scale: of the scores. chosen: (T, most), the positions that tokens attend to, then
    -1; None: all up to their own.
    """
    kv, kr = cache
    sin, cos = (np.tile(angles, 2) for angles in rope)
    projected = mla_prolog(
        np.concatenate([h, np.ones((len(h), 1), np.float32)], axis=1) if weights.biased else h,
        *weights[:6],
        sin,
        cos,
        slots,
        kv,
        kr,
        rmsnorm_epsilon_cq=weights.eps_cq,
        rmsnorm_epsilon_ckv=weights.eps_ckv,
    )
    if chosen is not None:
        attended = sparse_mla_attention(
            projected.query,
            kv,
            None,
            chosen[:, None],
            scale,
            query_rope=projected.query_rope,
            key_rope=kr,
            **index_layer.each_alone(batch, "kv"),
        )
        return values_up(attended, weights.w_uv, linear).reshape(len(h), -1)
    return mla_attention(
        projected.query,
        projected.query_rope,
        kv,
        kr,
        batch.page_table,
        batch.positions + 1,
        scale=scale,
        sequence=batch.sequence,
        w_uv=weights.w_uv,
    ).reshape(len(h), -1)


def store(
    h: np.ndarray,
    weights: LatentWeights,
    config: Config,
    cache: tuple[np.ndarray, np.ndarray],
    slots: np.ndarray,
    rope: tuple[np.ndarray, np.ndarray],
) -> None:
    """Writes the latent and key of every token, as `attend` does; nothing else of the layer is computed."""
    sizes, (sin, cos), (kv, kr) = config.latent_attention, rope, cache
    assert sizes is not None
    both = with_bias(linear(h, weights.latent), weights.latent_bias)
    latent, key = np.split(both, [sizes.latent_dim], axis=1)
    kv.reshape(-1, sizes.latent_dim)[slots] = rms_norm(np.ascontiguousarray(latent), weights.latent_norm, eps=sizes.norm_eps)
    kr.reshape(-1, sizes.rope_dim)[slots] = np.concatenate(turn_pairs(key, sin, cos), axis=1)


def _with_bias(weight: Weight | None, bias: np.ndarray | None) -> Weight:
    """The bias as the weight of one more input."""
    assert weight is not None
    return weight if bias is None else PackedWeight.from_array(np.concatenate([_rows(weight).dense(), bias[None]]))


def _key_up(weight: Weight, config: Config) -> np.ndarray:
    """float32 (N, D, Hckv)."""
    values = _rows(weight).values()
    return np.ascontiguousarray(values.reshape(config.heads, config.latent_dim, values.shape[1]).swapaxes(1, 2))


def _rows(weight: Weight) -> PackedWeight:
    return weight if isinstance(weight, PackedWeight) else weight.rows()
