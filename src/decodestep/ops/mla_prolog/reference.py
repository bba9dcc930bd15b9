"""The MLA prolog stage by stage, with the roundings of the specification.

`math` is the dtype of elementwise work and of floating-point sums: float32 as on the device, float64 as an oracle. With
bfloat16 tensors every ``astype(p.real)`` is one of the specified roundings; with float32 or float64 tensors it rounds nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from decodestep._base.arrays import widen
from decodestep.ops.linear.reference import quantise
from decodestep.ops.mla_prolog import float8
from decodestep.ops.mla_prolog.cache_layouts import row_index
from decodestep.ops.mla_prolog.problem import Problem, Results, Weight
from decodestep.ops.mla_prolog.scenarios import TILE, Scenario
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import PackedWeight
from decodestep.weights.panel_weight import PanelWeight

_FLT_EPSILON = 2.0**-23
_INT8_SUM = 1024  # the sum of this many products of two int8 stays within 2^24, so float32 adds them exactly in any order


def prolog(p: Problem, math: np.dtype[Any] | type[np.floating[Any]] | None = None) -> Results:
    """Computes everything, then writes the caches."""
    math = np.dtype(math or (np.float64 if p.real == np.float64 else np.float32))
    with np.errstate(all="ignore"):  # infinities and NaN propagate as IEEE says
        return _prolog(p, math)


def _prolog(p: Problem, math: np.dtype[Any]) -> Results:
    s, scales = p.scenario, {name: scale.astype(math) for name, scale in p.scales.items()}
    heads, nope, latent = p.w_uk.shape
    rope = p.sin.shape[1]

    def from_tokens(w: Weight, columns: int, scale: str) -> np.ndarray:
        if s.full:
            return _quantised_product(s, p.x, scales["dequant_scale_x"], w, scales[scale], columns)
        return widen(_real_product(p.x, w, columns, math).astype(p.real), math)

    raw = from_tokens(p.w_dq, p.query_width, "dequant_scale_w_dq")
    normed = rms_norm(raw, p.gamma_cq, p.eps_cq, p.alpha_cq)
    columns = heads * (nope + rope)
    cq_scale = None
    if s.partial:
        cq, cq_scale = _quantise_compressed(p, normed * scales.get("smooth_scales_cq", math.type(1)))
        q = _quantised_product(s, cq, cq_scale.astype(math), p.w_uq_qr, scales["dequant_scale_w_uq_qr"], columns)
    else:
        cq = normed.astype(p.real)
        q = widen(_real_product(cq, p.w_uq_qr, columns, math).astype(p.real), math)
    q = q.reshape(len(cq), heads, nope + rope)

    # Of a quantised product only the nope part is rounded; the rope part enters ROPE in `math`.
    sin, cos = widen(p.sin, math), widen(p.cos, math)
    query_rope = rotate(q[..., nope:], sin[:, None], cos[:, None]).astype(p.real)
    query, query_scale = _absorb(widen(q[..., :nope].astype(p.real), math), p.w_uk, math).astype(p.real), None
    if s.query_quantised:
        wide = widen(query, math)
        query, query_scale = quantise_rows(wide, p.rounding) if s.code == "int8" else float8.quantise_rows(wide)
        query_rope = in_query_units(query_rope, query_scale, scales["quant_scale_ckv"].flat[0])

    if p.kv_cache.shape[0] and len(p.slots):
        ckv_kr = from_tokens(p.w_dkv_kr, latent + rope, "dequant_scale_w_dkv_kr")
        kc = rms_norm(ckv_kr[:, :latent], p.gamma_ckv, p.eps_ckv, p.alpha_ckv)
        _write_caches(p, kc, rotate(ckv_kr[:, latent:], sin, cos).astype(p.real), scales)
    if cq_scale is not None and not s.blocks:
        cq_scale = cq_scale.astype(np.float32)
    return Results(
        query,
        query_rope,
        None if query_scale is None else query_scale.astype(np.float32),
        cq if p.query_norm else None,
        cq_scale if p.query_norm else None,
    )


def _quantise_compressed(p: Problem, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The compressed query as weight_uq_qr multiplies it; its blocks are those of what is rounded to `p.real` first."""
    if p.scenario.blocks:
        return float8.quantise_blocks(widen(z.astype(p.real), z.dtype))
    return quantise_rows(z) if p.scenario.code == "int8" else float8.quantise_rows(z)


def matrix(w: Weight, inputs: int, columns: int) -> np.ndarray:
    """The (inputs, columns) matrix of a weight in any of its forms."""
    if isinstance(w, LinearPanels):
        return w.rows().dense()
    if isinstance(w, (PackedWeight, PanelWeight)):
        return w.dense()
    if w.ndim == 2:
        return w
    n, blocks, rows, c0 = w.shape
    return w.transpose(1, 2, 0, 3).reshape(blocks * rows, n * c0)[:inputs, :columns]


def _real_product(x: np.ndarray, w: Weight, columns: int, math: np.dtype[Any]) -> np.ndarray:
    wide = widen(x, math)
    if isinstance(w, LinearPanels) and w.quantises_activations:
        wide = quantise(wide)
    return wide @ widen(matrix(w, x.shape[1], columns), math)


def _quantised_product(
    s: Scenario, x: np.ndarray, x_scale: np.ndarray, w: Weight, w_scale: np.ndarray, columns: int
) -> np.ndarray:
    """x W, each by its scale; the result and the scales are in `math`."""
    math = x_scale.dtype
    if s.code == "int8":
        return _int8_product(x, w, columns, math) * x_scale * w_scale
    wide, weight = widen(x, math), widen(matrix(w, x.shape[1], columns), math)
    if s.blocks:
        return (wide * float8.by_input(x_scale)) @ (weight * float8.by_input(w_scale).T)
    return wide @ weight * x_scale * w_scale


def _int8_product(x: np.ndarray, w: Weight, columns: int, math: np.dtype[Any]) -> np.ndarray:
    """The exact integers x W, converted to `math` once."""
    wide = matrix(w, x.shape[1], columns)
    total = np.zeros((len(x), columns), np.int64)
    for k in range(0, x.shape[1], _INT8_SUM):
        part = x[:, k : k + _INT8_SUM].astype(np.float32) @ wide[k : k + _INT8_SUM].astype(np.float32)
        total += part.astype(np.int64)
    return total.astype(math)


def rms_norm(x: np.ndarray, gamma: np.ndarray, eps: float, alpha: float) -> np.ndarray:
    math = x.dtype.type
    rms = np.sqrt(np.sum(x * x, axis=-1, keepdims=True) * math(1.0 / x.shape[-1]) + math(eps))
    x = x / rms * widen(gamma, x.dtype)
    return x * math(alpha) if abs(alpha - 1.0) >= _FLT_EPSILON else x


def to_int8(v: np.ndarray, rounding: str = "half_even") -> np.ndarray:
    """Rounds and saturates; NaN gives 0, as the device's conversion does."""
    whole = np.rint(v) if rounding == "half_even" else _half_away(_half_away(v, 10), None)
    return np.nan_to_num(np.clip(whole, -128, 127), copy=False, nan=0.0).astype(np.int8)


def _half_away(v: np.ndarray, bits: int | None) -> np.ndarray:
    """Rounds to `bits` bits after the leading one, or to an integer if None; ties go away from zero."""
    unit = np.ones_like(v) if bits is None else np.ldexp(np.ones_like(v), np.maximum(np.frexp(v)[1] - 1 - bits, -24))
    return np.copysign(np.floor(np.abs(v) / unit + v.dtype.type(0.5)) * unit, v)


def quantise_rows(z: np.ndarray, rounding: str = "half_even") -> tuple[np.ndarray, np.ndarray]:
    """Symmetric int8 with one scale for each row of the last axis, (q, scale[..., 1]); zeros have scale 0 and q 0."""
    largest = np.abs(z).max(axis=-1, keepdims=True)
    full = z.dtype.type(127)
    return to_int8(z * np.where(largest == 0, largest, full / largest), rounding), largest / full


def in_query_units(rope: np.ndarray, query_scale: np.ndarray, kv_scale: np.floating[Any]) -> np.ndarray:
    """The rope part of an int8 query, so that one factor serves both parts of its score."""
    scaled = widen(rope, query_scale.dtype) * kv_scale / query_scale
    # If a head and its rope part are zeros, the rope part stays 0 instead of 0 / 0.
    zeros = (query_scale == 0) & (rope == 0)
    return np.where(zeros, query_scale.dtype.type(0), scaled).astype(rope.dtype)


def rotate(x: np.ndarray, sin: np.ndarray, cos: np.ndarray) -> np.ndarray:
    """RoPE, interleaved pairs in, halves out; both halves of sin and cos are read."""
    even, odd, h = x[..., 0::2], x[..., 1::2], x.shape[-1] // 2
    return np.concatenate([even * cos[..., :h] - odd * sin[..., :h], odd * cos[..., h:] + even * sin[..., h:]], axis=-1)


def _absorb(q_nope: np.ndarray, w_uk: np.ndarray | PanelWeight, math: np.dtype[Any]) -> np.ndarray:
    """(T, N, D) times each head's (D, Hckv), head by head, so that only one head's weight is widened at a time."""
    query = np.empty((len(q_nope), *w_uk.shape[::2]), math)
    for n, w in enumerate(w_uk.dense() if isinstance(w_uk, PanelWeight) else w_uk):
        query[:, n] = q_nope[:, n] @ widen(w, math)
    return query


def _write_caches(p: Problem, kc: np.ndarray, kr: np.ndarray, scales: dict[str, np.ndarray]) -> None:
    rows = cache_rows(p, kc, kr, scales)
    for name, cache in (("kv", p.kv_cache), ("kr", p.kr_cache)):
        if name in rows:
            write_rows(cache, rows[name], p.slots, p.nz)


def cache_rows(p: Problem, kc: np.ndarray, kr: np.ndarray, scales: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The rows of "kv" and "kr" as the caches hold them, from the normed latents and the rotated keys, rounded to `p.real`."""
    s, math = p.scenario, kc.dtype
    if s.kv == "tile":
        codes, scale = float8.quantise_tiles(kc) if s.code != "int8" else _int8_tiles(kc, scales["k_nope_clip_alpha"][0])
        return {"kv": _tile_rows(codes, kr, scale)}
    if s.kv == "channel":
        return {"kv": to_int8(kc * scales["quant_scale_ckv"]), "kr": to_int8(widen(kr, math) * scales["quant_scale_ckr"])}
    if s.kv == "tensor":
        scaled = kc * scales["quant_scale_ckv"].flat[0]
        return {"kv": to_int8(scaled) if s.code == "int8" else float8.to_float8(scaled), "kr": kr}
    return {"kv": kc.astype(p.real), "kr": kr}


def write_rows(cache: np.ndarray, rows: np.ndarray, slots: np.ndarray, nz: bool) -> None:
    """Of several rows with one slot the last is kept; negative slots are not written."""
    at, last = np.unique(slots[::-1], return_index=True)
    row = (len(slots) - 1 - last)[at >= 0]
    cache[row_index(at[at >= 0], cache, nz)] = rows[row]


def _int8_tiles(kc: np.ndarray, alpha: np.floating[Any]) -> tuple[np.ndarray, np.ndarray]:
    """The latents clipped and quantised by tiles, and the tiles' scales (T, Hckv / TILE)."""
    tiles = kc.reshape(len(kc), -1, TILE)
    bound = np.abs(tiles).max(axis=-1, keepdims=True) * alpha
    scale = bound / bound.dtype.type(127)
    q = to_int8(np.clip(tiles, -bound, bound) * np.where(scale == 0, scale, 1 / scale))
    return q.reshape(kc.shape), scale[..., 0]


def _tile_rows(codes: np.ndarray, kr: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Cache rows as bytes: the quantised latents, the rope keys unchanged, one float32 scale for each tile."""
    parts = (codes, kr, scale.astype("<f4"))
    return np.concatenate([np.ascontiguousarray(part).view(np.int8) for part in parts], axis=1).view(codes.dtype)
