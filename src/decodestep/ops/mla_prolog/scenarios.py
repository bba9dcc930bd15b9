"""The quantisation scenarios as data: which tensors are quantised to what, and which scales a call must or may have."""

from __future__ import annotations

from dataclasses import dataclass

from decodestep._base.checks import Phrase, refuse

SCALES = (
    "dequant_scale_x",
    "dequant_scale_w_dq",
    "dequant_scale_w_uq_qr",
    "dequant_scale_w_dkv_kr",
    "quant_scale_ckv",
    "quant_scale_ckr",
    "smooth_scales_cq",
    "k_nope_clip_alpha",
)
TILE = 128  # latent values that share a scale in a cache quantised by tiles
BLOCK = 32  # inputs that share a scale where `Scenario.blocks`


@dataclass(frozen=True)
class Scenario:
    name: str
    full: bool  # token_x, weight_dq and weight_dkv_kr are quantised
    partial: bool  # weight_uq_qr is quantised, as it also is if `full`
    kv: str | None  # what one scale of kv_cache covers: "channel", "tensor" or "tile"; None: not quantised
    modes: tuple[int, int, int]  # V3's weight_quant_mode, kv_cache_quant_mode and query_quant_mode
    key: int | None  # the quantisation mode in the tiling key of November 2025; None: a later scenario
    key_2026: int  # the same in the key of 2026
    required: tuple[str, ...]
    optional: tuple[str, ...] = ("smooth_scales_cq",)
    code: str = "int8"  # the dtype of what is quantised, or "float8_e4m3fn"
    blocks: bool = False  # a scale of tokens or of a weight covers 32 inputs and is a power of two

    @property
    def kr_int8(self) -> bool:
        return self.kv == "channel"

    @property
    def query_quantised(self) -> bool:
        return self.kv == "tensor"


_UQ = ("dequant_scale_w_uq_qr",)
_ALL = ("dequant_scale_x", "dequant_scale_w_dq", "dequant_scale_w_uq_qr", "dequant_scale_w_dkv_kr")
_CKV = ("quant_scale_ckv",)
_CHANNEL = (*_CKV, "quant_scale_ckr")
_TILE = ("k_nope_clip_alpha",)
_SMOOTH = ("smooth_scales_cq",)
_FLOAT8 = "float8_e4m3fn"

#                             full   partial kv        modes     key  2026 scales
NO_QUANT = Scenario("NO_QUANT", False, False, None, (0, 0, 0), 0, 0, (), ())
_PARTIAL = Scenario("PARTIAL", False, True, None, (1, 0, 0), 0, 1, _UQ)
_PARTIAL_KV = Scenario("PARTIAL_KV", False, True, "channel", (1, 2, 0), 1, 2, _UQ + _CHANNEL)
_FULL = Scenario("FULL", True, True, None, (2, 0, 0), 2, 3, _ALL)
_FULL_KV = Scenario("FULL_KV", True, True, "tensor", (2, 1, 1), 3, 4, _ALL + _CKV)
_PARTIAL_TILE = Scenario("PARTIAL_TILE", False, True, "tile", (1, 3, 0), None, 5, _UQ + _TILE)
_FULL_TILE = Scenario("FULL_TILE", True, True, "tile", (2, 3, 0), None, 6, _ALL + _TILE)
_MXFP8 = Scenario("MXFP8", True, True, None, (3, 0, 0), None, 7, _ALL, (), _FLOAT8, True)
_MXFP8_KV = Scenario("MXFP8_KV", True, True, "tensor", (3, 1, 1), None, 8, _ALL + _CKV, (), _FLOAT8, True)
_MXFP8_TILE = Scenario("MXFP8_TILE", True, True, "tile", (3, 3, 0), None, 9, _ALL, (), _FLOAT8, True)
_FP8 = Scenario("FP8", True, True, None, (4, 0, 0), None, 10, _ALL, _SMOOTH, _FLOAT8)
_FP8_KV = Scenario("FP8_KV", True, True, "tensor", (4, 1, 1), None, 11, _ALL + _CKV, _SMOOTH, _FLOAT8)
_FP8_TILE = Scenario("FP8_TILE", True, True, "tile", (4, 3, 0), None, 14, _ALL, _SMOOTH + _TILE, _FLOAT8)

_INT8 = (NO_QUANT, _PARTIAL, _PARTIAL_KV, _FULL, _FULL_KV, _PARTIAL_TILE, _FULL_TILE)
SCENARIOS = {s.name: s for s in (*_INT8, _MXFP8, _MXFP8_KV, _MXFP8_TILE, _FP8, _FP8_KV, _FP8_TILE)}
_BY_DTYPES = {(s.full, s.partial, s.kv is not None): s for s in _INT8 if s.kv != "tile"}
_BY_MODES = {s.modes: s for s in SCENARIOS.values()}


def from_dtypes(x_int8: bool, uq_int8: bool, kv_int8: bool) -> Scenario:
    """The scenario in V1, V2 and the V3 of November 2025: FULL with int8 tokens, else PARTIAL with an int8 weight_uq_qr, else
    NO_QUANT. Dtypes that fit no scenario give the nearest one, whose checks then name the tensor that differs."""
    partial = x_int8 or uq_int8
    return _BY_DTYPES[(x_int8, partial, kv_int8 and partial)]


def from_modes(op: str, weight: int, kv_cache: int, query: int) -> Scenario:
    """The scenario in the later V3, named by its attributes; the dtypes must agree with it."""
    scenario = _BY_MODES.get((weight, kv_cache, query))
    if scenario is None:
        refuse(
            op,
            "(weight_quant_mode, kv_cache_quant_mode, query_quant_mode)",
            f"one of {', '.join(map(str, _BY_MODES))}",
            Phrase(f"({weight}, {kv_cache}, {query})"),
        )
    return scenario
