"""The calls into the native core.

Without quantisation, with packed weights and cache rows in their natural order, one call does everything. In all other cases
the stages are those of the reference and the core does the products, which is where the time goes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from decodestep import _native
from decodestep.arrays import packed
from decodestep.dispatch import threads
from decodestep.ops.linear import cpu as linear
from decodestep.ops.linear.weight import PackedWeight
from decodestep.ops.mla_prolog import reference
from decodestep.ops.mla_prolog.arguments import Problem, Weight, columns_of
from decodestep.ops.mla_prolog.reference import Results, widen

_FLOAT32 = np.dtype(np.float32)
_EXACT_INPUTS = 1 << 17  # fewer products of two int8 stay inside int32


def obstacle(p: Problem) -> str | None:
    """Why the native core cannot serve a call, or None."""
    if p.real == np.float64:
        return "has no float64"
    inputs = p.x.shape[1] if p.w_dq is None else max(p.x.shape[1], columns_of(p.w_dq))
    if p.scenario.partial and inputs >= _EXACT_INPUTS:
        return "has no sums of so many int8"
    return None


def prolog(p: Problem) -> Results:
    if _serves_whole(p):
        return _whole(p)
    return reference.prolog(p, products=reference.Products(_real_product, _int8_product, _absorb))


def _serves_whole(p: Problem) -> bool:
    if not (isinstance(p.w_uq_qr, PackedWeight) and isinstance(p.w_dkv_kr, PackedWeight)) or p.scenario.kv or p.nz:
        return False
    if p.w_dq is not None and not isinstance(p.w_dq, PackedWeight):
        return False
    for cache in (p.kv_cache, p.kr_cache):
        flags = cache.flags
        if not flags.aligned or not (flags.c_contiguous or cache[:1].flags.c_contiguous):
            return False
    return True


def _real_product(x: np.ndarray, w: Weight, columns: int, math: np.dtype[Any]) -> np.ndarray:
    x = widen(x, math)
    return linear.linear(x, w) if isinstance(w, PackedWeight) else _product(x, w, columns)


def _int8_product(x: np.ndarray, w: Weight, columns: int, math: np.dtype[Any]) -> np.ndarray:
    assert isinstance(w, np.ndarray)
    return _product(x.astype(math), w, columns)


def _product(x: np.ndarray, w: np.ndarray, columns: int) -> np.ndarray:
    y = np.empty((1, len(x), columns), np.float32)
    panels = w.ndim == 4 and w.shape[3] % 16 == 0  # the eight columns of a float32 fractal are none
    cut = packed(w).reshape(w.shape[0], -1, w.shape[3]) if panels else reference.matrix(w, x.shape[1], columns)[None]
    _columns(x[None], cut, panels, y)
    return y[0]


def _absorb(q_nope: np.ndarray, w_uk: np.ndarray, math: np.dtype[Any]) -> np.ndarray:
    query = np.empty((len(q_nope), *w_uk.shape[::2]), math)
    _columns(q_nope.transpose(1, 0, 2), w_uk, False, query.transpose(1, 0, 2))
    return query


def _columns(x: np.ndarray, w: np.ndarray, panels: bool, y: np.ndarray) -> None:
    """y = x @ w for each of the first axis; what does not lie in rows is copied first."""
    if x.strides[2] != x.itemsize or not x.flags.aligned:
        x = x.copy()
    if w.strides[2] != w.itemsize or min(w.strides[:2]) < 0 or not w.flags.aligned:
        w = w.copy()
    if w.dtype == np.int8:
        _native.columns_i8(x, w, panels, y, threads())
    elif w.dtype == _FLOAT32:
        _native.columns_f32(x, w, panels, y, threads())
    else:
        _native.columns_bf16(x, w.view(np.uint16), panels, y, threads())


def _whole(p: Problem) -> Results:
    (tokens, inputs), (heads, _, latent), rope = p.x.shape, p.w_uk.shape, p.sin.shape[1]
    w_dq, w_uq_qr, w_dkv_kr = p.w_dq, p.w_uq_qr, p.w_dkv_kr
    assert isinstance(w_uq_qr, PackedWeight) and isinstance(w_dkv_kr, PackedWeight)
    assert w_dq is None or isinstance(w_dq, PackedWeight)
    query = np.empty((tokens, heads, latent), p.real) if p.need_query else None
    query_rope = np.empty((tokens, heads, rope), p.real)
    slots, kv_cache, kr_cache = p.slots, p.kv_cache, p.kr_cache
    if not kv_cache.size:  # nothing is cached; NumPy leaves the strides of an empty array undefined
        kv_cache, kr_cache = np.empty((1, 1, 1, latent), p.real), np.empty((1, 1, 1, rope), p.real)
        slots = np.full(tokens, -1)
    native = _native.mla_prolog if p.real == _FLOAT32 else _native.mla_prolog_bf16
    native(
        _float32(p.x),
        None if w_dq is None else w_dq.rows,
        0 if w_dq is None else int(w_dq.format),
        w_uq_qr.rows,
        int(w_uq_qr.format),
        w_dkv_kr.rows,
        int(w_dkv_kr.format),
        packed(_bits(p.w_uk)),
        None if p.gamma_cq is None else _float32(p.gamma_cq),
        None if p.gamma_ckv is None else _float32(p.gamma_ckv),
        p.eps_cq,
        p.eps_ckv,
        p.alpha_cq,
        p.alpha_ckv,
        _float32(p.sin),
        _float32(p.cos),
        packed(slots),
        _bits(kv_cache),
        _bits(kr_cache),
        p.rope_groups,
        None if query is None else _bits(query),
        _bits(query_rope),
        np.empty((tokens, inputs if w_dq is None else w_dq.shape[1]), np.float32),
        np.empty((tokens, w_uq_qr.shape[1]), np.float32),
        np.empty((tokens, w_dkv_kr.shape[1]), np.float32),
        threads(),
    )
    return Results(query, query_rope)


def _float32(a: np.ndarray) -> np.ndarray:
    """What the kernel reads as float32: small arrays, so that a bfloat16 one is widened here."""
    return packed(a if a.dtype == _FLOAT32 else widen(a, _FLOAT32))


def _bits(a: np.ndarray) -> np.ndarray:
    """A bfloat16 array, which the core does not know by name, as the integers of its bits."""
    return a if a.dtype == _FLOAT32 else a.view(np.uint16)
