"""The checks of the three public functions, and the one form in which backends see a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from decodestep._base.arrays import BFLOAT16, optional_view, view
from decodestep._base.checks import is_int, is_real, refuse, require, require_choice
from decodestep.ops.mla_prolog import layouts, limits
from decodestep.ops.mla_prolog.scenarios import NO_QUANT, SCALES, TILE, Scenario, from_dtypes, from_modes
from decodestep.ops.mla_prolog.slots import token_slots
from decodestep.weights.packed import PackedWeight
from decodestep.weights.prolog_panels import PanelWeight

_INT8, _FLOAT32 = np.dtype(np.int8), np.dtype(np.float32)
_REAL = (BFLOAT16, _FLOAT32, np.dtype(np.float64))
_INFINITY = float("inf")

Weight = np.ndarray | PackedWeight | PanelWeight  # a matrix (K, N), its NZ storage, or packed in either way


@dataclass(slots=True)
class Problem:
    """A checked call: views of merged tokens, weights as they are stored, and one cache slot for each token."""

    op: str
    scenario: Scenario
    real: np.dtype[Any]  # the type of everything that is not int8 and no scale
    x: np.ndarray  # (T, He)
    w_dq: Weight | None  # (He, Hcq)
    w_uq_qr: Weight  # (Hcq, N * (D + Dr / rope_groups))
    w_uk: np.ndarray | PanelWeight  # (N, D, Hckv)
    w_dkv_kr: Weight  # (He, Hckv + Dr)
    gamma_cq: np.ndarray | None
    gamma_ckv: np.ndarray | None
    sin: np.ndarray  # (T, Dr)
    cos: np.ndarray
    slots: np.ndarray  # (T,) int64: block * block size + row; negative: the token is not cached
    kv_cache: np.ndarray  # (blocks, block size, 1, width)
    kr_cache: np.ndarray
    nz: bool
    scales: Mapping[str, np.ndarray]
    eps_cq: float
    eps_ckv: float
    alpha_cq: float
    alpha_ckv: float
    rope_groups: int
    need_query: bool
    rounding: str
    query_norm: bool


class Attributes(NamedTuple):
    """What the later V3 alone has, with the values that November 2025 reserves."""

    query_norm_flag: bool = False
    weight_quant_mode: int = 0
    kv_cache_quant_mode: int = 0
    query_quant_mode: int = 0
    ckvkr_repo_mode: int = 0
    quant_scale_repo_mode: int = 0
    tile_size: int = TILE


_RESERVED = Attributes()


def bind(
    op: str,
    modes: tuple[str, ...],
    tensors: tuple[Any, ...],
    scales: Sequence[Any],
    eps: tuple[float, float],
    cache_mode: str,
    profile: str | None,
    rope_groups: int,
    need_query: bool,
    alpha: tuple[float, float] = (1.0, 1.0),
    rounding: str = "half_even",
    attributes: Attributes | None = None,
    actual_seq_len: Any = None,
) -> Problem:
    """`tensors` in V1's order from token_x to kr_cache; `scales` in the order of `SCALES`, the last of them V3's alone."""
    x, w_dq, w_uq_qr, w_uk, w_dkv_kr, gamma_cq, gamma_ckv, sin, cos, index, kv_cache, kr_cache = tensors
    x, w_uk = view(op, "token_x", x), w_uk if isinstance(w_uk, PanelWeight) else view(op, "weight_uk", w_uk)
    sin, cos = view(op, "rope_sin", sin), view(op, "rope_cos", cos)
    kv_cache, kr_cache = view(op, "kv_cache", kv_cache), view(op, "kr_cache", kr_cache)
    gamma_cq = optional_view(op, "rmsnorm_gamma_cq", gamma_cq)
    gamma_ckv = optional_view(op, "rmsnorm_gamma_ckv", gamma_ckv)
    w_dq = None if w_dq is None else _weight(op, "weight_dq", w_dq)
    w_uq_qr, w_dkv_kr = _weight(op, "weight_uq_qr", w_uq_qr), _weight(op, "weight_dkv_kr", w_dkv_kr)
    if profile is not None:
        limits.profile(op, profile)
    if cache_mode not in modes:
        require_choice(op, "cache_mode", cache_mode, modes)
    tnd = cache_mode == "TND"

    # The symbols, each from the argument that defines it.
    ranks = (2,) if tnd else (3,) if cache_mode == "BSND" else (2, 3)
    if x.ndim not in ranks or x.shape[-1] == 0:
        refuse(op, "token_x", f"of shape {' or '.join(('(T, He)', '(B, S, He)')[r - 2] for r in ranks)}, He > 0", x)
    if w_uk.ndim != 3 or w_uk.shape[0] == 0 or w_uk.shape[2] == 0 or w_uk.dtype not in _REAL:
        refuse(op, "weight_uk", "bfloat16 (or float32 or float64 throughout) of shape (N, D, Hckv), N and Hckv > 0", w_uk)
    if kv_cache.ndim != 4 - tnd:
        refuse(op, "kv_cache", "of shape (T, 1, H)" if tnd else "of shape (blocks, block size, 1, H)", kv_cache)
    axes, He, (N, D, Hckv), real = x.shape[:-1], x.shape[-1], w_uk.shape, w_uk.dtype
    Dr = sin.shape[-1] if sin.ndim else 0
    if Dr == 0 or Dr % 2:
        refuse(op, "rope_sin", "of an even width Dr > 0", sin)
    if not (is_int(rope_groups) and rope_groups > 0 and N % rope_groups == 0 and Dr // 2 % rope_groups == 0):
        refuse(op, "rope_groups", f"a divisor of N = {N} and of Dr / 2 = {Dr // 2}", repr(rope_groups))
    if w_dq is not None and len(w_dq.shape) not in (2, 4):
        refuse(op, "weight_dq", "a matrix (He, Hcq) or its NZ storage", w_dq)
    Hcq = He if w_dq is None else columns_of(w_dq)
    uq_width = N * (D + Dr // rope_groups)
    if attributes is None:
        uq_int8 = not isinstance(w_uq_qr, PackedWeight) and w_uq_qr.dtype == _INT8
        s = from_dtypes(x.dtype == _INT8, uq_int8, kv_cache.dtype == _INT8)
        if s.full and op == "mla_prolog":
            refuse(op, "token_x", f"{real.name}: the first version takes no int8 tokens", x)
    else:
        s = _named_scenario(op, attributes, cache_mode)
    tile = s.kv == "tile"
    if tile and (Hckv % TILE or real != BFLOAT16):
        refuse(op, "weight_uk", f"bfloat16, of Hckv a multiple of {TILE}, in scenario {s.name}", w_uk)
    if s.full and w_dq is None:
        refuse(op, "weight_dq", "given where token_x is int8", "None")

    token_type = _INT8 if s.full else real
    rows = axes if cache_mode in ("TND", "BSND") else kv_cache.shape[:2]
    width = Hckv + 2 * Dr + Hckv // TILE * 4 if tile else Hckv
    for name, value, dtype, shape in (
        ("token_x", x, token_type, (*axes, He)),
        ("rope_sin", sin, real, (*axes, Dr)),
        ("rope_cos", cos, real, (*axes, Dr)),
        ("rmsnorm_gamma_cq", gamma_cq, real, (Hcq,)),
        ("rmsnorm_gamma_ckv", gamma_ckv, real, (Hckv,)),
        ("kv_cache", kv_cache, _INT8 if s.kv else real, (*rows, 1, width)),
        ("kr_cache", None if tile else kr_cache, _INT8 if s.kr_int8 else real, (*rows, 1, Dr)),
    ):
        if value is not None and (value.shape != shape or value.dtype != dtype):
            refuse(op, name, f"{dtype.name} of shape {'x'.join(map(str, shape))}", value)
    if w_dq is not None:
        _check_weight(op, "weight_dq", w_dq, token_type, He, Hcq)
    _check_weight(op, "weight_uq_qr", w_uq_qr, _INT8 if s.partial else real, Hcq, uq_width)
    _check_weight(op, "weight_dkv_kr", w_dkv_kr, token_type, He, Hckv + Dr)

    _check_caches(op, cache_mode, tile, kv_cache, kr_cache)
    for name, number in (("rmsnorm_epsilon_cq", eps[0]), ("rmsnorm_epsilon_ckv", eps[1])):
        if not (is_real(number) and 0 <= number < _INFINITY):
            refuse(op, name, "a finite number >= 0", repr(number))
    if not need_query and (D or s.query_int8):
        refuse(op, "need_query", f"True with D = {D} in scenario {s.name}", repr(need_query))

    tokens = axes[0] if len(axes) == 1 else axes[0] * axes[1]
    given: dict[str, np.ndarray] = {}
    if s is not NO_QUANT or [scale for scale in scales if scale is not None]:
        ckv = ((1, Hckv),) if s.kv == "channel" else ((1, Hckv), (1, 1), (1,))
        shapes = (((tokens, 1),), ((1, Hcq),), ((1, uq_width),), ((1, Hckv + Dr),), ckv, ((1, Dr),), ((1, Hcq),), ((1,),))
        given = _scales(op, s, scales, shapes)
    blocks, block_size = (1, tokens) if tnd else kv_cache.shape[:2]
    slots = token_slots(op, cache_mode, index, actual_seq_len, axes, tokens, blocks, block_size)
    if profile is not None:
        unmerged = len(axes) == 2
        limits.check(
            op,
            profile,
            {
                "He": He,
                "Hcq": Hcq,
                "Hckv": Hckv,
                "N": N,
                "D": D,
                "Dr": Dr,
                "BlockSize": block_size if cache_mode.startswith("PA") else None,
                "B": axes[0] if unmerged else None,
                "S": axes[1] if unmerged else None,
                "T": None if unmerged else tokens,
            },
        )
    if len(axes) == 2:
        x, sin, cos = x.reshape(tokens, He), sin.reshape(tokens, Dr), cos.reshape(tokens, Dr)
    if tnd:
        kv_cache, kr_cache = kv_cache[None], kr_cache[None]
    return Problem(
        op,
        s,
        real,
        x,
        w_dq,
        w_uq_qr,
        w_uk,
        w_dkv_kr,
        gamma_cq,
        gamma_ckv,
        sin,
        cos,
        slots,
        kv_cache,
        kr_cache,
        cache_mode.endswith("NZ"),
        given,
        eps[0],
        eps[1],
        alpha[0],
        alpha[1],
        rope_groups,
        need_query,
        rounding,
        attributes is not None and attributes.query_norm_flag,
    )


def attributes_of_call(op: str, profile: str | None, given: Attributes) -> Attributes | None:
    """V3's attributes, checked; None where the profile reserves them, so that the dtypes name the scenario."""
    if limits.profile(op, profile).attributes_reserved:
        for name, value, reserved in zip(given._fields, given, _RESERVED, strict=True):
            require(value == reserved, op, name, f"{reserved} under limits={profile!r}", repr(value))
        return None
    require(isinstance(given.query_norm_flag, bool), op, "query_norm_flag", "True or False", given.query_norm_flag)
    for name, choices in (
        ("weight_quant_mode", range(3)),
        ("kv_cache_quant_mode", range(4)),
        ("query_quant_mode", range(2)),
        ("ckvkr_repo_mode", range(2)),
        ("quant_scale_repo_mode", range(2)),
        ("tile_size", (TILE,)),
    ):
        value = getattr(given, name)
        require(is_int(value), op, name, "an integer", repr(value))
        require_choice(op, name, value, choices)
    return given


def _named_scenario(op: str, a: Attributes, cache_mode: str) -> Scenario:
    s = from_modes(op, a.weight_quant_mode, a.kv_cache_quant_mode, a.query_quant_mode)
    combined = int(s.kv == "tile")
    for name, value in (("ckvkr_repo_mode", a.ckvkr_repo_mode), ("quant_scale_repo_mode", a.quant_scale_repo_mode)):
        require(value == combined, op, name, f"{combined} in scenario {s.name}", value)
    if combined:
        require_choice(op, "cache_mode", cache_mode, ("PA_BSND", "BSND", "TND"))
    return s


def _weight(op: str, arg: str, weight: Any) -> Weight:
    return weight if isinstance(weight, (PackedWeight, PanelWeight)) else view(op, arg, weight)


def columns_of(weight: Weight) -> int:
    """N of a (K, N) weight; of NZ storage with its padding."""
    shape = weight.shape
    return shape[1] if len(shape) == 2 else shape[0] * shape[3]


def _check_weight(op: str, arg: str, weight: Weight, dtype: np.dtype[Any], K: int, N: int) -> None:
    if K and N:
        if isinstance(weight, PackedWeight):
            if weight.shape == (K, N) and dtype is not _INT8:
                return
        elif isinstance(weight, PanelWeight):
            if weight.shape == (K, N) and weight.dtype == dtype:
                return
        elif weight.dtype == dtype and weight.shape in ((K, N), layouts.nz_shape((K, N), dtype.itemsize)):
            return
    storage = "x".join(map(str, layouts.nz_shape((K, N), dtype.itemsize)))
    refuse(
        op,
        arg,
        f"{dtype.name} of shape {K}x{N}, or its NZ storage {storage}",
        weight if isinstance(weight, np.ndarray) else f"a {type(weight).__name__} of shape {weight.shape}",
    )


def _check_caches(op: str, cache_mode: str, tile: bool, kv_cache: np.ndarray, kr_cache: np.ndarray) -> None:
    for name, cache in (("kv_cache", kv_cache), ("kr_cache", kr_cache)):
        if not cache.flags.writeable:
            refuse(op, name, "writeable", "a read-only array")
        if cache_mode.endswith("NZ") and cache.shape[3] % layouts.lanes(cache.itemsize):
            refuse(op, name, f"of a width that is a multiple of {layouts.lanes(cache.itemsize)} in {cache_mode}", cache)
    if tile and kr_cache.size:
        refuse(op, "kr_cache", "empty: kv_cache holds the rope key too", kr_cache)
    if cache_mode.startswith("PA") and kv_cache.shape[1] == 0:
        refuse(op, "kv_cache", "of a block size > 0", kv_cache)


def _scales(op: str, s: Scenario, scales: Sequence[Any], shapes: Sequence[Sequence[tuple[int, ...]]]) -> dict[str, np.ndarray]:
    given = {}
    for name, scale, allowed in zip(SCALES, scales, shapes, strict=False):
        if scale is None:
            if name in s.required:
                refuse(op, name, f"given in scenario {s.name}", "None")
            continue
        if name not in s.required and name not in s.optional:
            refuse(op, name, f"None in scenario {s.name}", scale)
        array = view(op, name, scale)
        if array.dtype != _FLOAT32 or array.shape not in allowed:
            refuse(op, name, f"float32 of shape {' or '.join('x'.join(map(str, shape)) for shape in allowed)}", array)
        given[name] = array
    return given
