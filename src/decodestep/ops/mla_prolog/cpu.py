"""The call into the native core: float32 without quantisation, weights packed, cache rows in their natural order."""

from __future__ import annotations

import numpy as np

from decodestep import _native
from decodestep.arrays import packed
from decodestep.dispatch import threads
from decodestep.ops.linear.weight import PackedWeight
from decodestep.ops.mla_prolog.arguments import Problem
from decodestep.ops.mla_prolog.reference import Results


def obstacle(p: Problem) -> str | None:
    """Why the native kernel cannot serve a call, or None."""
    rows = isinstance(p.w_uq_qr, PackedWeight) and isinstance(p.w_dkv_kr, PackedWeight)
    if not (rows and (p.w_dq is None or isinstance(p.w_dq, PackedWeight)) and p.real == np.float32):
        return "needs float32 tensors and packed weights"
    if p.scenario.partial or p.nz:
        return "needs caches without quantisation, in rows"
    for cache in (p.kv_cache, p.kr_cache):
        flags = cache.flags
        if not flags.aligned or not (flags.c_contiguous or cache[:1].flags.c_contiguous):
            return "needs caches whose blocks are contiguous"
    return None


def prolog(p: Problem) -> Results:
    (tokens, inputs), (heads, _, latent), rope = p.x.shape, p.w_uk.shape, p.sin.shape[1]
    w_dq, w_uq_qr, w_dkv_kr = p.w_dq, p.w_uq_qr, p.w_dkv_kr
    assert isinstance(w_uq_qr, PackedWeight) and isinstance(w_dkv_kr, PackedWeight)
    assert w_dq is None or isinstance(w_dq, PackedWeight)
    query = np.empty((tokens, heads, latent), np.float32) if p.need_query else None
    query_rope = np.empty((tokens, heads, rope), np.float32)
    slots, kv_cache, kr_cache = p.slots, p.kv_cache, p.kr_cache
    if not kv_cache.size:  # nothing is cached; NumPy leaves the strides of an empty array undefined
        kv_cache, kr_cache = np.empty((1, 1, 1, latent), np.float32), np.empty((1, 1, 1, rope), np.float32)
        slots = np.full(tokens, -1)
    _native.mla_prolog(
        packed(p.x),
        None if w_dq is None else w_dq.rows,
        0 if w_dq is None else int(w_dq.format),
        w_uq_qr.rows,
        int(w_uq_qr.format),
        w_dkv_kr.rows,
        int(w_dkv_kr.format),
        packed(p.w_uk),
        None if p.gamma_cq is None else packed(p.gamma_cq),
        None if p.gamma_ckv is None else packed(p.gamma_ckv),
        p.eps_cq,
        p.eps_ckv,
        p.alpha_cq,
        p.alpha_ckv,
        packed(p.sin),
        packed(p.cos),
        packed(slots),
        kv_cache,
        kr_cache,
        p.rope_groups,
        query,
        query_rope,
        np.empty((tokens, inputs if w_dq is None else w_dq.shape[1]), np.float32),
        np.empty((tokens, w_uq_qr.shape[1]), np.float32),
        np.empty((tokens, w_dkv_kr.shape[1]), np.float32),
        threads(),
    )
    return Results(query, query_rope)
