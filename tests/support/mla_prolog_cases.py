"""Random calls of MlaProlog, and what to compare their results by."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import decodestep as ds
from support.tolerances import assert_close

BF16 = np.dtype(ml_dtypes.bfloat16)


FLOAT8, EXPONENT8 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e8m0fnu)


class Quantised(NamedTuple):
    """What is quantised in a scenario: the tokens, weight_uq_qr and the caches. modes: V3's, of weights, caches and queries.

    code: to what. blocks: with powers of two for 32 inputs.
    """

    token: bool
    uq: bool
    kv: str | None
    modes: tuple[int, int, int]
    code: Any = np.dtype(np.int8)
    blocks: bool = False


SCENARIOS = {
    "NO_QUANT": Quantised(False, False, None, (0, 0, 0)),
    "PARTIAL": Quantised(False, True, None, (1, 0, 0)),
    "PARTIAL_KV": Quantised(False, True, "channel", (1, 2, 0)),
    "FULL": Quantised(True, True, None, (2, 0, 0)),
    "FULL_KV": Quantised(True, True, "tensor", (2, 1, 1)),
    "PARTIAL_TILE": Quantised(False, True, "tile", (1, 3, 0)),
    "FULL_TILE": Quantised(True, True, "tile", (2, 3, 0)),
    "MXFP8": Quantised(True, True, None, (3, 0, 0), FLOAT8, True),
    "MXFP8_KV": Quantised(True, True, "tensor", (3, 1, 1), FLOAT8, True),
    "MXFP8_TILE": Quantised(True, True, "tile", (3, 3, 0), FLOAT8, True),
    "FP8": Quantised(True, True, None, (4, 0, 0), FLOAT8),
    "FP8_KV": Quantised(True, True, "tensor", (4, 1, 1), FLOAT8),
    "FP8_TILE": Quantised(True, True, "tile", (4, 3, 0), FLOAT8),
}
# Those of int8 weights, which have other forms than arrays and NZ storage.
INT8_SCENARIOS = [name for name, each in SCENARIOS.items() if each.code == np.int8]
MODES = ["PA_BSND", "PA_NZ", "PA_BLK_BSND", "PA_BLK_NZ", "BSND", "TND"]
V1 = ["NO_QUANT", "PARTIAL", "PARTIAL_KV"]
V2 = [*V1, "FULL", "FULL_KV"]


def legal(scenario: str, mode: str, merged: bool) -> bool:
    if scenario.endswith("TILE") and mode not in ("PA_BSND", "BSND", "TND"):
        return False
    return (mode != "TND" or merged) and (mode != "BSND" or not merged)


def nz_block(rows: np.ndarray) -> np.ndarray:
    """(rows, H) in the order of an NZ block, as one flat array."""
    c0 = 32 // rows.dtype.itemsize
    return np.concatenate([rows[:, i : i + c0].reshape(-1) for i in range(0, rows.shape[1], c0)])


def nz_weight(w: np.ndarray) -> np.ndarray:
    c0 = 32 // w.dtype.itemsize
    K, N = w.shape
    flat = np.zeros(K * N, w.dtype)
    for n in range(N):
        for k in range(K):
            flat[(n // c0) * (K * c0) + k * c0 + n % c0] = w[k, n]
    return flat.reshape(N // c0, K // 16, 16, c0)


class Sizes(NamedTuple):
    He: int = 48
    Hcq: int = 32
    N: int = 2
    D: int = 16
    Hckv: int = 64
    Dr: int = 32


class Values(NamedTuple):
    """Random arrays. real: the dtype of those that are not quantised."""

    rng: np.random.Generator
    real: Any

    def normal(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (self.rng.standard_normal(shape) * scale).astype(self.real)

    def codes(self, quantised: Quantised, *shape: int) -> np.ndarray:
        if quantised.code == FLOAT8:
            return (self.rng.standard_normal(shape) * 40).clip(-448, 448).astype(FLOAT8)
        return self.rng.integers(-127, 128, shape, np.int8)

    def exponents(self, *shape: int) -> np.ndarray:
        return self.rng.integers(118, 124, shape, np.uint8).view(EXPONENT8)

    def positive(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (self.rng.uniform(0.5, 1.5, shape) * scale).astype(np.float32)

    def gamma(self, size: int) -> np.ndarray:
        return (1 + 0.2 * self.normal(size).astype(float)).astype(self.real)

    def weight(self, k: int, n: int, quantised: Quantised | None, nz: bool) -> np.ndarray:
        w = self.codes(quantised, k, n) if quantised else self.normal(k, n, scale=1 / math.sqrt(k))
        return nz_weight(w) if nz else w


def make(
    rng: np.random.Generator,
    scenario: str = "NO_QUANT",
    mode: str = "PA_BSND",
    merged: bool = True,
    *,
    B: int = 3,
    S: int = 3,
    block: int = 4,
    blocks: int = 8,
    real: Any = BF16,
    smooth: bool = True,
    nz_weights: bool = False,
    lengths: Any = None,
    negative: bool = True,
    tiles: int = 2,
    **sizes: int,
) -> dict[str, Any]:
    """The arguments of mla_prolog_v3; caches hold random bits. sizes: of `Sizes`."""
    values, size = Values(rng, real), Sizes(**sizes)
    modes = SCENARIOS[scenario].modes
    if SCENARIOS[scenario].kv == "tile":
        size = size._replace(Hckv=128 * tiles)
    if SCENARIOS[scenario].blocks:
        size = size._replace(He=-(-size.He // 32) * 32, Hcq=-(-size.Hcq // 32) * 32)
    lengths = list(lengths) if lengths is not None else [S] * B
    axes = (sum(lengths),) if merged else (B, S)
    call = _tensors(values, size, scenario, axes, nz_weights) | _scales(values, size, scenario, sum(lengths), smooth)
    call |= dict(weight_quant_mode=modes[0], kv_cache_quant_mode=modes[1], query_quant_mode=modes[2], cache_mode=mode)
    call |= _caches(values, size, scenario, axes if mode in ("BSND", "TND") else (blocks, block))
    if mode in ("PA_BSND", "PA_NZ"):
        call["cache_index"] = rng.integers(-3 if negative else 0, blocks * block, axes)  # slots may repeat
    elif mode.startswith("PA_BLK"):
        owned = [-(-length // block) for length in lengths]
        call["cache_index"] = rng.integers(-1 if negative else 0, blocks, (sum(owned),) if merged else (B, owned[0]))
        if merged:
            call["actual_seq_len"] = np.cumsum(lengths).astype(np.int32)
    return call


def _tensors(values: Values, size: Sizes, scenario: str, axes: tuple[int, ...], nz: bool) -> dict[str, Any]:
    quantised = SCENARIOS[scenario]
    of_tokens, of_queries = quantised if quantised.token else None, quantised if quantised.uq else None
    He, Hcq, N, D, Hckv, Dr = size
    angle = values.rng.uniform(0, 6.3, (*axes, Dr))
    return dict(
        token_x=values.codes(quantised, *axes, He) if of_tokens else values.normal(*axes, He),
        weight_dq=values.weight(He, Hcq, of_tokens, nz),
        weight_uq_qr=values.weight(Hcq, N * (D + Dr), of_queries, nz),
        weight_uk=values.normal(N, D, Hckv, scale=1 / math.sqrt(D or 1)),
        weight_dkv_kr=values.weight(He, Hckv + Dr, of_tokens, nz),
        rmsnorm_gamma_cq=values.gamma(Hcq),
        rmsnorm_gamma_ckv=values.gamma(Hckv),
        rope_sin=np.sin(angle).astype(values.real),
        rope_cos=np.cos(angle).astype(values.real),
    )


def _scales(values: Values, size: Sizes, scenario: str, tokens: int, smooth: bool) -> dict[str, Any]:
    int8 = SCENARIOS[scenario]
    He, Hcq, N, D, Hckv, Dr = size
    positive, made = values.positive, dict[str, Any]()
    if int8.blocks:
        made |= dict(
            dequant_scale_x=values.exponents(tokens, He // 32),
            dequant_scale_w_dq=values.exponents(Hcq, He // 32),
            dequant_scale_w_uq_qr=values.exponents(N * (D + Dr), Hcq // 32),
            dequant_scale_w_dkv_kr=values.exponents(Hckv + Dr, He // 32),
        )
    elif int8.token:
        made |= dict(
            dequant_scale_x=positive(tokens, 1, scale=1e-2),
            dequant_scale_w_dq=positive(1, Hcq, scale=1e-2),
            dequant_scale_w_dkv_kr=positive(1, Hckv + Dr, scale=1e-2),
        )
    if int8.uq and not int8.blocks:
        made |= dict(dequant_scale_w_uq_qr=positive(1, N * (D + Dr), scale=2e-3))
        if smooth:
            made |= dict(smooth_scales_cq=positive(1, Hcq))
    if int8.kv == "channel":
        made |= dict(quant_scale_ckv=positive(1, Hckv, scale=50), quant_scale_ckr=positive(1, Dr, scale=50))
    if int8.kv == "tensor":
        made |= dict(quant_scale_ckv=positive(*[(1,), (1, 1), (1, Hckv)][values.rng.integers(3)], scale=50))
    if int8.kv == "tile":
        made |= dict(ckvkr_repo_mode=1, quant_scale_repo_mode=1)
        if not int8.blocks:
            made |= dict(k_nope_clip_alpha=np.array([values.rng.uniform(0.6, 1)], np.float32))
    return made


def _caches(values: Values, size: Sizes, scenario: str, rows: tuple[int, ...]) -> dict[str, Any]:
    quantised, latent, rope = SCENARIOS[scenario], size.Hckv, size.Dr
    if quantised.kv == "tile":
        rows_of_bytes = values.rng.integers(0, 64, (*rows, 1, latent + 2 * rope + 4 * (latent // 128)), np.int8)
        empty = np.zeros(0, values.real if quantised.code == FLOAT8 else np.int8)
        return dict(kv_cache=rows_of_bytes.view(quantised.code), kr_cache=empty)  # no pattern of the bytes is a NaN
    kv_cache = values.codes(quantised, *rows, 1, latent) if quantised.kv else values.normal(*rows, 1, latent)
    kr_shape = (*rows, 1, rope)
    return dict(
        kv_cache=kv_cache,
        kr_cache=values.codes(quantised, *kr_shape) if quantised.kv == "channel" else values.normal(*kr_shape),
    )


def for_version(call: dict[str, Any], version: int) -> dict[str, Any]:
    """A call of V3 as one of V1 or V2, by name."""
    if version == 3:
        return call
    v3 = (
        "actual_seq_len",
        "k_nope_clip_alpha",
        "query_norm_flag",
        "weight_quant_mode",
        "kv_cache_quant_mode",
        "query_quant_mode",
        "ckvkr_repo_mode",
        "quant_scale_repo_mode",
        "tile_size",
        "qc_qr_scale",
        "kc_scale",
    )
    return {name: value for name, value in call.items() if name not in v3}


def copied(call: dict[str, Any]) -> dict[str, Any]:
    return call | {name: call[name].copy() for name in ("kv_cache", "kr_cache")}


FUNCTIONS = {1: ds.mla_prolog, 2: ds.mla_prolog_v2, 3: ds.mla_prolog_v3}


def call(arguments: dict[str, Any], version: int = 3, **more: Any) -> dict[str, Any]:
    """Results by name, the caches as they are afterwards among them."""
    result = FUNCTIONS[version](**for_version(arguments, version), **more)
    return {**result._asdict(), "kv_cache": arguments["kv_cache"], "kr_cache": arguments["kr_cache"]}


def parts(name: str, values: np.ndarray, latent: int, rope: int) -> dict[str, np.ndarray]:
    """A cache row quantised by tiles in its three parts."""
    if name != "kv_cache" or values.dtype not in (np.int8, FLOAT8) or values.shape[-1] in (32, 64, 256):
        return {name: values}
    rows = np.ascontiguousarray(values.reshape(-1, values.shape[-1]))
    return {
        "tile_q": rows[:, :latent],
        "tile_kr": rows[:, latent : latent + 2 * rope].copy().view(BF16),
        "tile_scale": rows[:, latent + 2 * rope :].copy().view(np.float32),
    }


def steps(codes: np.ndarray) -> np.ndarray:
    """The place of each value among all that its dtype of eight bits has."""
    if codes.dtype == np.int8:
        return codes.astype(int)
    bits = codes.view(np.uint8).astype(int)
    return bits if codes.dtype == EXPONENT8 else np.where(bits & 128, -(bits & 127), bits)


def undivided(results: dict[str, Any]) -> np.ndarray:
    """query_rope times its head's scale, by which that of an int8 query has been divided; zeros have scale 0."""
    rope, scale = results["query_rope"], np.asarray(results["dequant_scale_q_nope"], np.float64)
    return (rope * np.where(scale == 0, 1, scale).reshape(*rope.shape[:-1], 1)).astype(rope.dtype)


def agree(got: dict[str, Any], want: dict[str, Any], flips: Counter | None = None, latent: int = 256, rope: int = 32) -> None:
    """int8 within one unit, the others within their dtype's tolerance; `flips` counts what is not the same."""
    if got.get("dequant_scale_q_nope") is not None and got["query_rope"].dtype != np.float64:
        # The scale is the largest of some sums: where they all nearly cancel, the quotient has few digits to compare, while
        # the product has them all. (float64 divides by the scale before it is rounded to float32.)
        got, want = got | {"query_rope": undivided(got)}, want | {"query_rope": undivided(want)}
    for name, value in got.items():
        if value is None or name not in want:
            continue
        expected = parts(name, np.asarray(want[name]), latent, rope)
        for part, actual in parts(name, value, latent, rope).items():
            wanted = expected[part].reshape(actual.shape)
            if actual.dtype in (np.int8, FLOAT8, EXPONENT8):
                assert np.abs(steps(actual) - steps(wanted.astype(actual.dtype))).max(initial=0) <= 1, name
            else:
                # A scale follows the largest of bfloat16 values.
                assert_close(actual.astype(BF16) if actual.dtype == np.float32 and flips is not None else actual, wanted)
            if flips is not None and actual.dtype != np.float32:
                flips[part, "off"] += int((actual != wanted.astype(actual.dtype)).sum())
                flips[part, "all"] += actual.size
