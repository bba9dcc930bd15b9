"""The call into the native core: float32 without quantisation, weights packed, PA_BSND caches."""

from __future__ import annotations

import numpy as np

from decodestep import _native
from decodestep.dispatch import threads
from decodestep.ops.linear.weight import PackedWeight


def prolog(
    x: np.ndarray,
    w_dq: PackedWeight | None,
    w_uq_qr: PackedWeight,
    w_uk: np.ndarray,
    w_dkv_kr: PackedWeight,
    gamma_cq: np.ndarray | None,
    gamma_ckv: np.ndarray | None,
    rope_sin: np.ndarray,
    rope_cos: np.ndarray,
    slots: np.ndarray,
    kv_cache: np.ndarray,
    kr_cache: np.ndarray,
    *,
    eps_cq: float,
    eps_ckv: float,
    alpha_cq: float,
    alpha_ckv: float,
    rope_groups: int,
    need_query: bool,
) -> tuple[np.ndarray | None, np.ndarray]:
    """Tokens x (T, He), sin and cos (T, Dr), slots (T,): writes the caches, returns query (T, N, Hckv) and query_rope."""
    tokens, (heads, nope, latent), rope = x.shape[0], w_uk.shape, rope_sin.shape[1]
    width = x.shape[1] if w_dq is None else w_dq.shape[1]
    query = np.empty((tokens, heads, latent), np.float32) if need_query else None
    query_rope = np.empty((tokens, heads, rope), np.float32)
    _native.mla_prolog(
        np.ascontiguousarray(x),
        None if w_dq is None else w_dq.rows,
        0 if w_dq is None else int(w_dq.format),
        w_uq_qr.rows,
        int(w_uq_qr.format),
        w_dkv_kr.rows,
        int(w_dkv_kr.format),
        np.ascontiguousarray(w_uk),
        None if gamma_cq is None else np.ascontiguousarray(gamma_cq),
        None if gamma_ckv is None else np.ascontiguousarray(gamma_ckv),
        eps_cq,
        eps_ckv,
        alpha_cq,
        alpha_ckv,
        np.ascontiguousarray(rope_sin),
        np.ascontiguousarray(rope_cos),
        np.ascontiguousarray(slots, np.int64),
        kv_cache,
        kr_cache,
        rope_groups,
        query,
        query_rope,
        np.empty((tokens, width), np.float32),
        np.empty((tokens, w_uq_qr.shape[1]), np.float32),
        np.empty((tokens, w_dkv_kr.shape[1]), np.float32),
        threads(),
    )
    return query, query_rope
