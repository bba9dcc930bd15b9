"""Argument checks of the three public functions: converts a `Call` to a `Problem`, or raises ValueError."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from decodestep._base.aliasing import require_apart
from decodestep._base.arrays import BFLOAT16, EXPONENT8, FLOAT8, view
from decodestep._base.checks import Phrase, is_finite, refuse, require_dtype, shape_text
from decodestep.ops.mla_prolog.call import HOST_WEIGHTS, Call, ProjectionWeight, check_options, find_scenario
from decodestep.ops.mla_prolog.problem import Problem, Weight, columns_of
from decodestep.ops.mla_prolog.scenarios import BLOCK, NO_QUANT, SCALES, TILE, Scenario
from decodestep.ops.mla_prolog.size_limits import check_sizes
from decodestep.ops.mla_prolog.slots import token_slots
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.nz import fractal_width, nz_shape
from decodestep.weights.packed import PackedWeight
from decodestep.weights.panel_weight import PanelWeight

_INT8, _FLOAT32 = np.dtype(np.int8), np.dtype(np.float32)
_REAL = (BFLOAT16, _FLOAT32, np.dtype(np.float64))
_CODES = {"int8": _INT8, "float8_e4m3fn": FLOAT8}  # by `Scenario.code`


@dataclass(slots=True, kw_only=True)
class Tensors:
    """Views of what every call has; the scales and cache_index, which a scenario or cache mode may lack, come later."""

    x: np.ndarray
    w_dq: Weight
    w_uq_qr: Weight
    w_uk: np.ndarray | PanelWeight
    w_dkv_kr: Weight
    gamma_cq: np.ndarray
    gamma_ckv: np.ndarray
    sin: np.ndarray
    cos: np.ndarray
    kv_cache: np.ndarray
    kr_cache: np.ndarray


@dataclass(slots=True, kw_only=True)
class Symbols:
    """The specification's symbols, each taken from the argument that defines it."""

    axes: tuple[int, ...]  # (T,), or (B, S)
    tokens: int  # T, or B * S
    He: int
    Hcq: int
    N: int
    D: int
    Hckv: int
    Dr: int
    real: np.dtype[Any]  # of every array that is neither quantised nor a scale

    @property
    def uq_width(self) -> int:
        """The columns of weight_uq_qr."""
        return self.N * (self.D + self.Dr)


def bind(call: Call, *, outlined: bool = False) -> Problem:
    """Checks a call. outlined: its arrays are outlines, which do not lie where their tensors do."""
    op = call.op
    check_options(call)
    tensors = _tensors(call)
    symbols = _symbols(call, tensors)
    scenario = _scenario(call, tensors, symbols)
    _check_shapes(call, tensors, symbols, scenario)
    _check_caches(call, tensors, scenario)
    _check_numbers(call)
    scales = _scales(call, symbols, scenario)
    if not outlined:
        _check_memory(op, tensors, scales)
    block_count, block_size = (1, symbols.tokens) if call.cache_mode == "TND" else tensors.kv_cache.shape[:2]
    slots = token_slots(
        op, call.cache_mode, call.cache_index, call.actual_seq_len, symbols.axes, symbols.tokens, block_count, block_size
    )
    if call.limits is not None:
        _check_limits(call, symbols, block_size)
    return _problem(call, tensors, symbols, scenario, scales, slots)


def _tensors(call: Call) -> Tensors:
    op = call.op
    return Tensors(
        x=_typed(call, "token_x"),
        w_uk=call.weight_uk if isinstance(call.weight_uk, PanelWeight) else view(op, "weight_uk", call.weight_uk),
        sin=view(op, "rope_sin", call.rope_sin),
        cos=view(op, "rope_cos", call.rope_cos),
        kv_cache=_typed(call, "kv_cache"),
        kr_cache=view(op, "kr_cache", call.kr_cache),
        gamma_cq=view(op, "rmsnorm_gamma_cq", call.rmsnorm_gamma_cq),
        gamma_ckv=view(op, "rmsnorm_gamma_ckv", call.rmsnorm_gamma_ckv),
        w_dq=_weight(call, "weight_dq"),
        w_uq_qr=_weight(call, "weight_uq_qr"),
        w_dkv_kr=_weight(call, "weight_dkv_kr"),
    )


def _weight(call: Call, arg: str) -> Weight:
    weight: ProjectionWeight = getattr(call, arg)
    return weight if isinstance(weight, HOST_WEIGHTS) else _typed(call, arg)


def _typed(call: Call, arg: str) -> np.ndarray:
    """An argument that may come as bytes, in the dtype that the call names."""
    array = view(call.op, arg, getattr(call, arg))
    if getattr(call, f"{arg}_dtype") is None:
        return array
    require_dtype(call.op, arg, array, (FLOAT8, np.uint8))
    return array.view(FLOAT8)


def _check_axes(call: Call, t: Tensors) -> None:
    """The axes of the arguments from which the sizes are read."""
    op, tnd = call.op, call.cache_mode == "TND"
    ranks = (2,) if tnd else (3,) if call.cache_mode == "BSND" else (2, 3)
    if t.x.ndim not in ranks or t.x.shape[-1] == 0:
        refuse(op, "token_x", f"of shape {' or '.join(('(T, He)', '(B, S, He)')[r - 2] for r in ranks)}, He > 0", t.x)
    if t.w_uk.ndim != 3 or t.w_uk.shape[0] == 0 or t.w_uk.shape[2] == 0 or t.w_uk.dtype not in _REAL:
        rule = "bfloat16 (or float32 or float64 throughout) of shape (N, D, Hckv), N and Hckv > 0"
        refuse(op, "weight_uk", rule, t.w_uk)
    if t.kv_cache.ndim != 4 - tnd:
        refuse(op, "kv_cache", "of shape (T, 1, H)" if tnd else "of shape (blocks, block size, 1, H)", t.kv_cache)
    if t.sin.ndim == 0 or t.sin.shape[-1] == 0 or t.sin.shape[-1] % 2:
        refuse(op, "rope_sin", "of an even width Dr > 0", t.sin)
    if len(t.w_dq.shape) not in (2, 4):
        refuse(op, "weight_dq", "a matrix (He, Hcq) or its NZ storage", t.w_dq)


def _symbols(call: Call, t: Tensors) -> Symbols:
    _check_axes(call, t)
    axes, (N, D, Hckv) = t.x.shape[:-1], t.w_uk.shape
    return Symbols(
        axes=axes,
        tokens=axes[0] if len(axes) == 1 else axes[0] * axes[1],
        He=t.x.shape[-1],
        Hcq=columns_of(t.w_dq),
        N=N,
        D=D,
        Hckv=Hckv,
        Dr=t.sin.shape[-1],
        real=t.w_uk.dtype,
    )


def _scenario(call: Call, t: Tensors, symbols: Symbols) -> Scenario:
    op = call.op
    s = find_scenario(call, x_int8=t.x.dtype == _INT8, uq_int8=_is_int8(t.w_uq_qr), kv_int8=t.kv_cache.dtype == _INT8)
    if s.kv == "tile" and (symbols.Hckv % TILE or symbols.real != BFLOAT16):
        refuse(op, "weight_uk", f"bfloat16, of Hckv a multiple of {TILE}, in scenario {s.name}", t.w_uk)
    if s.blocks and (symbols.He % BLOCK or symbols.Hcq % BLOCK):
        refuse(op, "weight_dq", f"of He and Hcq that are multiples of {BLOCK} in scenario {s.name}", Phrase(f"{t.w_dq.shape}"))
    return s


def _is_int8(weight: Weight) -> bool:
    """Whether this is the weight of a scenario with int8: GGUF blocks, whatever their format, stand for real numbers."""
    return not isinstance(weight, (PackedWeight, LinearPanels)) and weight.dtype == _INT8


def _check_shapes(call: Call, t: Tensors, symbols: Symbols, s: Scenario) -> None:
    op, axes, real = call.op, symbols.axes, symbols.real
    He, Hcq, Hckv, Dr = symbols.He, symbols.Hcq, symbols.Hckv, symbols.Dr
    code, tile = _CODES[s.code], s.kv == "tile"
    token_type = code if s.full else real
    rows = axes if call.cache_mode in ("TND", "BSND") else t.kv_cache.shape[:2]
    kv_width = Hckv + 2 * Dr + Hckv // TILE * 4 if tile else Hckv
    for name, value, dtype, shape in (
        ("token_x", t.x, token_type, (*axes, He)),
        ("rope_sin", t.sin, real, (*axes, Dr)),
        ("rope_cos", t.cos, real, (*axes, Dr)),
        ("rmsnorm_gamma_cq", t.gamma_cq, real, (Hcq,)),
        ("rmsnorm_gamma_ckv", t.gamma_ckv, real, (Hckv,)),
        ("kv_cache", t.kv_cache, code if s.kv else real, (*rows, 1, kv_width)),
        ("kr_cache", None if tile else t.kr_cache, _INT8 if s.kr_int8 else real, (*rows, 1, Dr)),
    ):
        if value is not None and (value.shape != shape or value.dtype != dtype):
            refuse(op, name, f"{dtype.name} of shape {shape_text(shape)}", value)
    _check_weight(op, "weight_dq", t.w_dq, token_type, He, Hcq)
    _check_weight(op, "weight_uq_qr", t.w_uq_qr, code if s.partial else real, Hcq, symbols.uq_width)
    _check_weight(op, "weight_dkv_kr", t.w_dkv_kr, token_type, He, Hckv + Dr)


def _check_weight(op: str, arg: str, weight: Weight, dtype: np.dtype[Any], K: int, N: int) -> None:
    if K and N and _is_weight_of(weight, dtype, K, N):
        return
    storage = shape_text(nz_shape((K, N), dtype.itemsize))
    refuse(
        op,
        arg,
        f"{dtype.name} of shape {K}x{N}, or its NZ storage {storage}",
        weight if isinstance(weight, np.ndarray) else Phrase(f"a {type(weight).__name__} of shape {weight.shape}"),
    )


def _is_weight_of(weight: Weight, dtype: np.dtype[Any], K: int, N: int) -> bool:
    if isinstance(weight, (PackedWeight, LinearPanels)):
        return weight.shape == (K, N) and dtype in _REAL
    if isinstance(weight, PanelWeight):
        return weight.shape == (K, N) and weight.dtype == dtype
    return weight.dtype == dtype and weight.shape in ((K, N), nz_shape((K, N), dtype.itemsize))


def _check_caches(call: Call, t: Tensors, s: Scenario) -> None:
    op, cache_mode = call.op, call.cache_mode
    for name, cache in (("kv_cache", t.kv_cache), ("kr_cache", t.kr_cache)):
        if not cache.flags.writeable:
            refuse(op, name, "writeable", Phrase("a read-only array"))
        c0 = fractal_width(cache.itemsize)
        if cache_mode.endswith("NZ") and cache.shape[3] % c0:
            refuse(op, name, f"of a width that is a multiple of {c0} in {cache_mode}", cache)
    if s.kv == "tile" and t.kr_cache.size:
        refuse(op, "kr_cache", "empty: kv_cache holds the rope key too", t.kr_cache)
    if cache_mode.startswith("PA") and t.kv_cache.shape[1] == 0:
        refuse(op, "kv_cache", "of a block size > 0", t.kv_cache)


def _check_memory(op: str, t: Tensors, scales: dict[str, np.ndarray]) -> None:
    """Indexes are left out: they are copied before anything is written."""
    read = {
        "token_x": t.x,
        "weight_dq": t.w_dq,
        "weight_uq_qr": t.w_uq_qr,
        "weight_uk": t.w_uk,
        "weight_dkv_kr": t.w_dkv_kr,
        "rmsnorm_gamma_cq": t.gamma_cq,
        "rmsnorm_gamma_ckv": t.gamma_ckv,
        "rope_sin": t.sin,
        "rope_cos": t.cos,
        **scales,
    }
    caches = {"kv_cache": t.kv_cache, "kr_cache": t.kr_cache}
    require_apart(op, caches, {name: value for name, value in read.items() if isinstance(value, np.ndarray)})


def _check_numbers(call: Call) -> None:
    for name, number in (("rmsnorm_epsilon_cq", call.rmsnorm_epsilon_cq), ("rmsnorm_epsilon_ckv", call.rmsnorm_epsilon_ckv)):
        if not (is_finite(number) and number >= 0):
            refuse(call.op, name, "a finite number >= 0", number)


def _scales(call: Call, symbols: Symbols, s: Scenario) -> dict[str, np.ndarray]:
    """The scales of the call by name: all that the scenario requires, none that it does not have."""
    scales = {name: getattr(call, name) for name in SCALES}
    if s is NO_QUANT and all(scale is None for scale in scales.values()):
        return {}
    op, given, shapes = call.op, {}, _scale_shapes(symbols, s)
    for name, scale in scales.items():
        if scale is None:
            if name in s.required:
                refuse(op, name, f"given in scenario {s.name}", None)
            continue
        if name not in s.required and name not in s.optional:
            refuse(op, name, f"None in scenario {s.name}", scale)
        array, allowed = view(op, name, scale), shapes[name]
        dtype = EXPONENT8 if s.blocks and name.startswith("dequant") else _FLOAT32
        if array.dtype != dtype or array.shape not in allowed:
            refuse(op, name, f"{dtype.name} of shape {' or '.join(map(shape_text, allowed))}", array)
        given[name] = array
    return given


def _scale_shapes(symbols: Symbols, s: Scenario) -> dict[str, tuple[tuple[int, ...], ...]]:
    Hcq, Hckv, Dr = symbols.Hcq, symbols.Hckv, symbols.Dr
    products = {"w_dq": (symbols.He, Hcq), "w_uq_qr": (Hcq, symbols.uq_width), "w_dkv_kr": (symbols.He, Hckv + Dr)}
    return {
        "dequant_scale_x": ((symbols.tokens, symbols.He // BLOCK if s.blocks else 1),),
        **{
            f"dequant_scale_{name}": ((outputs, inputs // BLOCK) if s.blocks else (1, outputs),)
            for name, (inputs, outputs) in products.items()
        },
        "quant_scale_ckv": ((1, Hckv),) if s.kv == "channel" else ((1, Hckv), (1, 1), (1,)),
        "quant_scale_ckr": ((1, Dr),),
        "smooth_scales_cq": ((1, Hcq),),
        "k_nope_clip_alpha": ((1,),),
    }


def _check_limits(call: Call, symbols: Symbols, block_size: int) -> None:
    unmerged = len(symbols.axes) == 2
    sizes = {
        "He": symbols.He,
        "Hcq": symbols.Hcq,
        "Hckv": symbols.Hckv,
        "N": symbols.N,
        "D": symbols.D,
        "Dr": symbols.Dr,
        "BlockSize": block_size if call.cache_mode.startswith("PA") else None,
        "B": symbols.axes[0] if unmerged else None,
        "S": symbols.axes[1] if unmerged else None,
        "T": None if unmerged else symbols.tokens,
    }
    check_sizes(call.op, call.limits, sizes)


def _problem(
    call: Call, t: Tensors, symbols: Symbols, s: Scenario, scales: dict[str, np.ndarray], slots: np.ndarray
) -> Problem:
    """The checked call with its tokens' axes merged, and in TND the cache's rows as one block."""
    x, sin, cos, kv_cache, kr_cache = t.x, t.sin, t.cos, t.kv_cache, t.kr_cache
    if len(symbols.axes) == 2:
        x, sin, cos = (a.reshape(symbols.tokens, a.shape[-1]) for a in (x, sin, cos))
    if call.cache_mode == "TND":
        kv_cache, kr_cache = kv_cache[None], kr_cache[None]
    return Problem(
        op=call.op,
        scenario=s,
        real=symbols.real,
        x=x,
        w_dq=t.w_dq,
        w_uq_qr=t.w_uq_qr,
        w_uk=t.w_uk,
        w_dkv_kr=t.w_dkv_kr,
        gamma_cq=t.gamma_cq,
        gamma_ckv=t.gamma_ckv,
        sin=sin,
        cos=cos,
        slots=slots,
        kv_cache=kv_cache,
        kr_cache=kr_cache,
        nz=call.cache_mode.endswith("NZ"),
        scales=scales,
        eps_cq=call.rmsnorm_epsilon_cq,
        eps_ckv=call.rmsnorm_epsilon_ckv,
        alpha_cq=call.qc_qr_scale,
        alpha_ckv=call.kc_scale,
        rounding=call.rounding,
        query_norm=call.query_norm_flag,
    )
