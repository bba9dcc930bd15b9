"""The call into the native core, which runs the whole operator in every scenario, layout and weight format."""

from __future__ import annotations

import numpy as np

from decodestep import _native
from decodestep._base.arrays import EXPONENT8, FLOAT8, bits, contiguous, widen
from decodestep._base.threads import threads
from decodestep.ops.mla_prolog.problem import CACHE_SCALES, Problem, Results, Weight
from decodestep.ops.mla_prolog.results import result_specs
from decodestep.weights.packed import PackedWeight
from decodestep.weights.panel_weight import PanelWeight

_FLOAT32 = np.dtype(np.float32)
_SCALED = ("x", "w_dq", "w_uq_qr", "w_dkv_kr")
_NO_FORMAT = -1  # instead of the number of a GGUF format


def prolog(p: Problem) -> Results:
    results = _empty_results(p)
    kv_cache, kr_cache = _native_cache(p.kv_cache), None if p.scenario.kv == "tile" else _native_cache(p.kr_cache)
    query_scale, norm_scale, s = results.dequant_scale_q_nope, results.dequant_scale_q_norm, p.scenario
    _native.mla_prolog(
        **_sizes(p),
        **_weights(p),
        **_scales(p),
        x=contiguous(bits(p.x)),
        float8=s.code != "int8",
        partial=s.partial,
        gamma_cq=_float32(p.gamma_cq),
        gamma_ckv=_float32(p.gamma_ckv),
        eps_cq=p.eps_cq,
        eps_ckv=p.eps_ckv,
        alpha_cq=p.alpha_cq,
        alpha_ckv=p.alpha_ckv,
        sin=contiguous(widen(p.sin, _FLOAT32)),
        cos=contiguous(widen(p.cos, _FLOAT32)),
        slots=contiguous(p.slots),
        kv_cache=kv_cache,
        kr_cache=kr_cache,
        nz=p.nz,
        query=bits(results.query),
        query_scale=None if query_scale is None else query_scale[..., 0],
        half_away=p.rounding == "half_away",
        query_rope=bits(results.query_rope),
        query_norm=None if results.query_norm is None else bits(results.query_norm),
        norm_scale=None if norm_scale is None or s.blocks else norm_scale[..., 0],
        norm_exponents=bits(norm_scale) if norm_scale is not None and s.blocks else None,
        threads=threads(),
    )
    _return_cache(kv_cache, p.kv_cache)
    _return_cache(kr_cache, p.kr_cache)
    return results


def _empty_results(p: Problem) -> Results:
    heads, _, latent = p.w_uk.shape
    specs = result_specs(
        p.scenario,
        (len(p.x),),
        heads,
        latent,
        p.sin.shape[1],
        p.query_width,
        query_norm=p.query_norm,
    )
    dtypes = {"real": p.real, "int8": np.dtype(np.int8), "float32": _FLOAT32, FLOAT8.name: FLOAT8, EXPONENT8.name: EXPONENT8}
    return Results(**{name: np.empty(spec.shape, dtypes[spec.dtype]) for name, spec in specs.items()})


def _sizes(p: Problem) -> dict[str, int]:
    heads, nope, latent = p.w_uk.shape
    return {"width": p.query_width, "heads": heads, "nope": nope, "latent": latent}


def _weights(p: Problem) -> dict[str, np.ndarray | int]:
    """Every weight, and for the projections its GGUF format."""
    made: dict[str, np.ndarray | int] = {"w_uk": _native_weight(p.w_uk)[0]}
    for name, weight in (("w_dq", p.w_dq), ("w_uq_qr", p.w_uq_qr), ("w_dkv_kr", p.w_dkv_kr)):
        made[name], made[f"{name}_format"] = _native_weight(weight)
    return made


def _scales(p: Problem) -> dict[str, np.ndarray | float | None]:
    scale = {name: _float32(value) for name, value in p.scales.items() if value.dtype != EXPONENT8}
    exponents = {name: contiguous(bits(value)) for name, value in p.scales.items() if value.dtype == EXPONENT8}
    ckv_scale, clip = scale.get("quant_scale_ckv"), scale.get("k_nope_clip_alpha")
    return {
        **{f"{name}_scale": scale.get(f"dequant_scale_{name}") for name in _SCALED},
        **{f"{name}_exponents": exponents.get(f"dequant_scale_{name}") for name in _SCALED},
        "smooth": scale.get("smooth_scales_cq"),
        "cache_scale": CACHE_SCALES[p.scenario.kv],
        "ckv_scale": ckv_scale[:1] if p.scenario.kv == "tensor" and ckv_scale is not None else ckv_scale,
        "ckr_scale": scale.get("quant_scale_ckr"),
        "clip": 1.0 if clip is None else float(clip[0]),
    }


def _float32(a: np.ndarray) -> np.ndarray:
    """A vector as the core reads it: small, so a bfloat16 one is widened here."""
    return contiguous(widen(a, _FLOAT32)).reshape(-1)


def _native_weight(w: Weight) -> tuple[np.ndarray, int]:
    """A weight as the core reads it, and its GGUF format. An array whose rows are not contiguous is copied first."""
    if isinstance(w, np.ndarray):
        if w.ndim == 4:
            w = contiguous(w).reshape(w.shape[0], -1, w.shape[3])
        elif not w.flags.carray:
            rows_contiguous = w.strides[-1] == w.itemsize and w.flags.aligned and min(w.strides) >= 0
            w = w if rows_contiguous or not w.size else w.copy()
        return bits(w), _NO_FORMAT
    if isinstance(w, PanelWeight):
        return bits(w.data), _NO_FORMAT
    return w.rows if isinstance(w, PackedWeight) else w.data, int(w.format)


def _native_cache(cache: np.ndarray) -> np.ndarray | None:
    """The cache itself, or a copy if it is not aligned; None if it has no rows."""
    return bits(cache if cache.flags.aligned else cache.copy()) if cache.size else None


def _return_cache(native: np.ndarray | None, cache: np.ndarray) -> None:
    """Copies a cache back that was not passed to the core itself."""
    if native is not None and not cache.flags.aligned:
        cache[...] = native.view(cache.dtype)
