"""The arguments of a call as given, and V3's attributes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from decodestep._base.arrays import Array
from decodestep._base.checks import is_finite, is_int, refuse, require, require_choice
from decodestep.ops.mla_prolog.scenarios import TILE
from decodestep.ops.mla_prolog.size_limits import PAGED_MODES, size_limits
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import PackedWeight
from decodestep.weights.prolog_panels import PanelWeight

# Weights in the host's memory that are no arrays.
HOST_WEIGHTS = (PanelWeight, LinearPanels, PackedWeight)
ProjectionWeight: TypeAlias = "Array | PanelWeight | LinearPanels | PackedWeight"

_ROUNDINGS = ("half_even", "half_away")


@dataclass(slots=True, kw_only=True)
class Call:
    """All arguments of `mla_prolog_v3` by name; V1 and V2 leave those that they lack at V3's defaults.

    The public functions construct it from locals(), which at their first line are their arguments.
    """

    op: str
    token_x: Array
    weight_dq: ProjectionWeight | None
    weight_uq_qr: ProjectionWeight
    weight_uk: Array | PanelWeight
    weight_dkv_kr: ProjectionWeight
    rmsnorm_gamma_cq: Array | None
    rmsnorm_gamma_ckv: Array | None
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
    rope_groups: int
    need_query: bool
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


class Attributes(NamedTuple):
    """The attributes that V3 gained after November 2025, which reserves these values for them."""

    query_norm_flag: bool = False
    weight_quant_mode: int = 0
    kv_cache_quant_mode: int = 0
    query_quant_mode: int = 0
    ckvkr_repo_mode: int = 0
    quant_scale_repo_mode: int = 0
    tile_size: int = TILE


_RESERVED = Attributes()
_MODES: tuple[tuple[str, Collection[int]], ...] = (
    ("weight_quant_mode", range(3)),
    ("kv_cache_quant_mode", range(4)),
    ("query_quant_mode", range(2)),
    ("ckvkr_repo_mode", range(2)),
    ("quant_scale_repo_mode", range(2)),
    ("tile_size", (TILE,)),
)


def check_options(call: Call) -> tuple[tuple[str, ...], Attributes | None]:
    """Checks the options that differ between versions: the legal cache modes, and the attributes.

    The attributes are None where the dtypes name the scenario: in V1 and V2, and in V3 under limits that reserve them.
    """
    later = call.op == "mla_prolog_v3"
    modes = size_limits(call.op, call.limits).cache_modes if later else PAGED_MODES
    require_choice(call.op, "rounding", call.rounding, _ROUNDINGS)
    if not later:
        return modes, None
    attributes = _attributes(call)
    for name, factor in (("qc_qr_scale", call.qc_qr_scale), ("kc_scale", call.kc_scale)):
        if not is_finite(factor):
            refuse(call.op, name, "a finite number", repr(factor))
    return modes, attributes


def _attributes(call: Call) -> Attributes | None:
    op = call.op
    given = Attributes(*(getattr(call, name) for name in Attributes._fields))
    if size_limits(op, call.limits).attributes_reserved:
        for name, value, reserved in zip(given._fields, given, _RESERVED, strict=True):
            require(value == reserved, op, name, f"{reserved} under limits={call.limits!r}", repr(value))
        return None
    require(isinstance(given.query_norm_flag, bool), op, "query_norm_flag", "True or False", given.query_norm_flag)
    for name, choices in _MODES:
        value = getattr(given, name)
        if not is_int(value):
            refuse(op, name, "an integer", repr(value))
        require_choice(op, name, value, choices)
    return given
