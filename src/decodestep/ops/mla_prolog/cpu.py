"""The call into the native core: the whole operator at once, in every scenario, layout and form of the weights."""

from __future__ import annotations

import numpy as np

from decodestep import _native
from decodestep._base.arrays import bits, contiguous, widen
from decodestep._base.dispatch import threads
from decodestep.ops.mla_prolog.arguments import Problem, Weight, columns_of
from decodestep.ops.mla_prolog.reference import Results
from decodestep.weights.packed import PackedWeight
from decodestep.weights.prolog_panels import PanelWeight

_FLOAT32, _INT8 = np.dtype(np.float32), np.dtype(np.int8)
_EXACT_INPUTS = 1 << 17  # fewer products of two int8 stay inside int32
_COLUMNS = -1  # the format of a weight that is not kept in rows
_CACHE_SCALES = {None: 0, "channel": 1, "tensor": 2, "tile": 3}  # CacheScale of csrc/mla_prolog/mla_prolog.h


def obstacle(p: Problem) -> str | None:
    """Why the native core cannot serve a call, or None."""
    if p.real == np.float64:
        return "has no float64"
    inputs = p.x.shape[1] if p.w_dq is None else max(p.x.shape[1], columns_of(p.w_dq))
    if p.scenario.partial and inputs >= _EXACT_INPUTS:
        return "has no sums of so many int8"
    return None


def prolog(p: Problem) -> Results:
    s, (tokens, hidden), (heads, nope, latent), rope = p.scenario, p.x.shape, p.w_uk.shape, p.sin.shape[1]
    width = hidden if p.w_dq is None else columns_of(p.w_dq)
    query = np.empty((tokens, heads, latent), _INT8 if s.query_int8 else p.real) if p.need_query else None
    query_scale = np.empty((tokens, heads), np.float32) if s.query_int8 else None
    query_rope = np.empty((tokens, heads, rope), p.real)
    query_norm = np.empty((tokens, width), _INT8 if s.partial else p.real) if p.query_norm else None
    norm_scale = np.empty(tokens, np.float32) if p.query_norm and s.partial else None
    w_dq, w_uq_qr, w_dkv_kr = (_native_weight(w) for w in (p.w_dq, p.w_uq_qr, p.w_dkv_kr))
    kv_cache, kr_cache = _native_cache(p.kv_cache), None if s.kv == "tile" else _native_cache(p.kr_cache)
    scale, clip = {name: _vector(value) for name, value in p.scales.items()}, p.scales.get("k_nope_clip_alpha")
    ckv_scale = scale.get("quant_scale_ckv")
    _native.mla_prolog(
        contiguous(bits(p.x)),
        scale.get("dequant_scale_x"),
        width,
        heads,
        nope,
        latent,
        p.rope_groups,
        *w_dq,
        scale.get("dequant_scale_w_dq"),
        *w_uq_qr,
        scale.get("dequant_scale_w_uq_qr"),
        *w_dkv_kr,
        scale.get("dequant_scale_w_dkv_kr"),
        _native_weight(p.w_uk)[0],
        None if p.gamma_cq is None else _vector(p.gamma_cq),
        None if p.gamma_ckv is None else _vector(p.gamma_ckv),
        p.eps_cq,
        p.eps_ckv,
        p.alpha_cq,
        p.alpha_ckv,
        contiguous(widen(p.sin, _FLOAT32)),
        contiguous(widen(p.cos, _FLOAT32)),
        scale.get("smooth_scales_cq"),
        contiguous(p.slots),
        kv_cache,
        kr_cache,
        p.nz,
        _CACHE_SCALES[s.kv],
        ckv_scale[:1] if s.kv == "tensor" and ckv_scale is not None else ckv_scale,
        scale.get("quant_scale_ckr"),
        1.0 if clip is None else float(clip[0]),
        None if query is None else bits(query),
        query_scale,
        p.rounding == "half_away",
        bits(query_rope),
        None if query_norm is None else bits(query_norm),
        norm_scale,
        threads(),
    )
    _return_cache(kv_cache, p.kv_cache)
    _return_cache(kr_cache, p.kr_cache)
    return Results(
        query,
        query_rope,
        None if query_scale is None else query_scale.reshape(tokens, heads, 1),
        query_norm,
        None if norm_scale is None else norm_scale.reshape(tokens, 1),
    )


def _vector(a: np.ndarray) -> np.ndarray:
    """What the core reads as a row of float32: small, so that a bfloat16 one is widened here."""
    return contiguous(widen(a, _FLOAT32)).reshape(-1)


def _native_weight(w: Weight | None) -> tuple[np.ndarray | None, int]:
    """A weight as the core reads it, and its format. What does not lie in rows is copied first."""
    if w is None:
        return None, _COLUMNS
    if isinstance(w, PackedWeight):
        return w.rows, int(w.format)
    if isinstance(w, PanelWeight):
        return bits(w.data), _COLUMNS
    if w.ndim == 4:
        w = contiguous(w).reshape(w.shape[0], -1, w.shape[3])
    lies_in_rows = w.strides[-1] == w.itemsize and w.flags.aligned and min(w.strides) >= 0
    return bits(w if lies_in_rows or not w.size else w.copy()), _COLUMNS


def _native_cache(cache: np.ndarray) -> np.ndarray | None:
    """The cache itself, or a copy where it is not aligned; None where there is no row."""
    return bits(cache if cache.flags.aligned else cache.copy()) if cache.size else None


def _return_cache(native: np.ndarray | None, cache: np.ndarray) -> None:
    if native is not None and not np.may_share_memory(native, cache):
        cache[...] = native.view(cache.dtype)
