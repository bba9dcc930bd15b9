"""The arguments of a call as given, and checks of the options that differ between versions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import TypeAlias

from decodestep._base.arrays import Array
from decodestep._base.checks import is_finite, is_int, refuse, require, require_choice
from decodestep.ops.mla_prolog.scenarios import TILE, Scenario, from_dtypes, from_modes
from decodestep.ops.mla_prolog.size_limits import PAGED_MODES, size_limits
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import PackedWeight
from decodestep.weights.panel_weight import PanelWeight

# Weights in the host's memory that are no arrays.
HOST_WEIGHTS = (PanelWeight, LinearPanels, PackedWeight)
ProjectionWeight: TypeAlias = "Array | PanelWeight | LinearPanels | PackedWeight"

_LATEST = "mla_prolog_v3"
_ROUNDINGS = ("half_even", "half_away")


@dataclass(slots=True, kw_only=True)
class Call:
    """All arguments of `mla_prolog_v3` by name; V1 and V2 leave those that they lack at V3's defaults."""

    op: str
    token_x: Array
    weight_dq: ProjectionWeight
    weight_uq_qr: ProjectionWeight
    weight_uk: Array | PanelWeight
    weight_dkv_kr: ProjectionWeight
    rmsnorm_gamma_cq: Array
    rmsnorm_gamma_ckv: Array
    rope_sin: Array
    rope_cos: Array
    kv_cache: Array
    kr_cache: Array
    cache_index: Array | None
    dequant_scale_x: Array | None
    dequant_scale_w_dq: Array | None
    dequant_scale_w_uq_qr: Array | None
    dequant_scale_w_dkv_kr: Array | None
    quant_scale_ckv: Array | None
    quant_scale_ckr: Array | None
    smooth_scales_cq: Array | None
    rmsnorm_epsilon_cq: float
    rmsnorm_epsilon_ckv: float
    cache_mode: str
    limits: str | None
    backend: str
    # from V2 on
    rounding: str = "half_even"
    # V3's own
    actual_seq_len: Array | None = None
    k_nope_clip_alpha: Array | None = None
    query_norm_flag: bool = False
    weight_quant_mode: int = 0
    kv_cache_quant_mode: int = 0
    query_quant_mode: int = 0
    ckvkr_repo_mode: int = 0
    quant_scale_repo_mode: int = 0
    tile_size: int = TILE
    qc_qr_scale: float = 1.0
    kc_scale: float = 1.0
    token_x_dtype: int | None = None
    weight_dq_dtype: int | None = None
    weight_uq_qr_dtype: int | None = None
    weight_dkv_kr_dtype: int | None = None
    kv_cache_dtype: int | None = None


# The arguments whose bytes V3 may be told to read as another dtype, and torch_npu's numbers of the dtypes of eight bits.
TYPED = ("token_x", "weight_dq", "weight_uq_qr", "weight_dkv_kr", "kv_cache")
_HIFLOAT8, _FLOAT8 = 290, 292
_HIF8_MODE = 5

# V3's attributes that are numbers, with their legal values.
_MODES: dict[str, Collection[int]] = {
    "weight_quant_mode": range(_HIF8_MODE),
    "kv_cache_quant_mode": range(4),
    "query_quant_mode": range(2),
    "ckvkr_repo_mode": range(2),
    "quant_scale_repo_mode": range(2),
    "tile_size": (TILE,),
}
# The attributes that V3 gained after November 2025, with their defaults, for which its limits reserve them.
_RESERVED = {field.name: field.default for field in fields(Call) if field.name in ("query_norm_flag", *_MODES)}


def check_options(call: Call) -> None:
    """Checks the options that differ between versions, each by itself; `find_scenario` says which modes go together."""
    op, limits = call.op, size_limits(call.op, call.limits)
    require_choice(op, "rounding", call.rounding, _ROUNDINGS)
    if op != _LATEST:
        require_choice(op, "cache_mode", call.cache_mode, PAGED_MODES)
        return
    if limits.attributes_reserved:
        for name, reserved in _RESERVED.items():
            value = getattr(call, name)
            ok = isinstance(value, bool) if isinstance(reserved, bool) else is_int(value)
            require(ok and value == reserved, op, name, f"{reserved} under limits={call.limits!r}", value)
        for name in (f"{arg}_dtype" for arg in TYPED):
            value = getattr(call, name)
            require(value is None, op, name, f"None under limits={call.limits!r}", value)
    else:
        _check_attributes(call)
    for name, factor in (("qc_qr_scale", call.qc_qr_scale), ("kc_scale", call.kc_scale)):
        if not is_finite(factor):
            refuse(op, name, "a finite number", factor)
    require_choice(op, "cache_mode", call.cache_mode, limits.cache_modes)


def find_scenario(call: Call, *, x_int8: bool, uq_int8: bool, kv_int8: bool) -> Scenario:
    """The scenario of a call whose token_x, weight_uq_qr and kv_cache are int8 or not.

    V3's attributes name it. In V1 and V2, and in V3 under limits that reserve the attributes, the dtypes do.
    """
    op = call.op
    if op == _LATEST and not size_limits(op, call.limits).attributes_reserved:
        return _named_scenario(call)
    s = from_dtypes(x_int8, uq_int8, kv_int8)
    if s.full and op == "mla_prolog":
        refuse(op, "token_x", "of real numbers: the first version takes no int8 tokens", call.token_x)
    return s


def _named_scenario(call: Call) -> Scenario:
    op = call.op
    s = from_modes(op, call.weight_quant_mode, call.kv_cache_quant_mode, call.query_quant_mode)
    combined = int(s.kv == "tile")
    for name, value in (("ckvkr_repo_mode", call.ckvkr_repo_mode), ("quant_scale_repo_mode", call.quant_scale_repo_mode)):
        if value != combined:
            refuse(op, name, f"{combined} in scenario {s.name}", value)
    if combined:
        require_choice(op, "cache_mode", call.cache_mode, ("PA_BSND", "BSND", "TND"))
    return s


def _check_attributes(call: Call) -> None:
    op = call.op
    require(isinstance(call.query_norm_flag, bool), op, "query_norm_flag", "True or False", call.query_norm_flag)
    hif8 = is_int(call.weight_quant_mode) and call.weight_quant_mode == _HIF8_MODE
    require(not hif8, op, "weight_quant_mode", "below 5: the format of 5, HiFloat8, is not published", call.weight_quant_mode)
    for name in (f"{arg}_dtype" for arg in TYPED):
        number = getattr(call, name)
        rule = f"None or {_FLOAT8}, float8_e4m3fn" + (": the format of 290, HiFloat8, is not published" * (number == _HIFLOAT8))
        require(number is None or (is_int(number) and number == _FLOAT8), op, name, rule, number)
    for name, choices in _MODES.items():
        value = getattr(call, name)
        if not is_int(value):
            refuse(call.op, name, "an integer", value)
        require_choice(call.op, name, value, choices)
