"""Random calls of MlaProlog, and an oracle that works token by token in float64 and shares no code with the operator."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np

import decodestep as ds
from tolerances import assert_close

BF16 = np.dtype(ml_dtypes.bfloat16)
#            int8: token  uq     kv         kr      V3's three modes
SCENARIOS = {
    "NO_QUANT": (False, False, None, (0, 0, 0)),
    "PARTIAL": (False, True, None, (1, 0, 0)),
    "PARTIAL_KV": (False, True, "channel", (1, 2, 0)),
    "FULL": (True, True, None, (2, 0, 0)),
    "FULL_KV": (True, True, "tensor", (2, 1, 1)),
    "PARTIAL_TILE": (False, True, "tile", (1, 3, 0)),
    "FULL_TILE": (True, True, "tile", (2, 3, 0)),
}
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


def make(
    rng: np.random.Generator,
    scenario: str = "NO_QUANT",
    mode: str = "PA_BSND",
    merged: bool = True,
    *,
    B: int = 3,
    S: int = 3,
    He: int = 48,
    Hcq: int = 32,
    N: int = 2,
    D: int = 16,
    Hckv: int = 64,
    Dr: int = 32,
    block: int = 4,
    blocks: int = 8,
    real: Any = BF16,
    smooth: bool = True,
    nz_weights: bool = False,
    lengths: Any = None,
    negative: bool = True,
    tiles: int = 2,
) -> dict[str, Any]:
    """The arguments of mla_prolog_v3; caches hold random bits."""
    token8, uq8, kv, modes = SCENARIOS[scenario]
    if kv == "tile":
        Hckv = 128 * tiles
    lengths = list(lengths) if lengths is not None else [S] * B
    T = sum(lengths)
    axes = (T,) if merged else (B, S)

    def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (rng.standard_normal(shape) * scale).astype(real)

    def int8(*shape: int) -> np.ndarray:
        return rng.integers(-127, 128, shape, np.int8)

    def positive(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (rng.uniform(0.5, 1.5, shape) * scale).astype(np.float32)

    def weight(k: int, n: int, quantised: bool) -> np.ndarray:
        w = int8(k, n) if quantised else normal(k, n, scale=1 / math.sqrt(k))
        return nz_weight(w) if nz_weights else w

    angle = rng.uniform(0, 6.3, (*axes, Dr))
    call = dict(
        token_x=int8(*axes, He) if token8 else normal(*axes, He),
        weight_dq=weight(He, Hcq, token8),
        weight_uq_qr=weight(Hcq, N * (D + Dr), uq8),
        weight_uk=normal(N, D, Hckv, scale=1 / math.sqrt(D or 1)),
        weight_dkv_kr=weight(He, Hckv + Dr, token8),
        rmsnorm_gamma_cq=(1 + 0.2 * normal(Hcq).astype(float)).astype(real),
        rmsnorm_gamma_ckv=(1 + 0.2 * normal(Hckv).astype(float)).astype(real),
        rope_sin=np.sin(angle).astype(real),
        rope_cos=np.cos(angle).astype(real),
    )
    if token8:
        call |= dict(
            dequant_scale_x=positive(T, 1, scale=1e-2),
            dequant_scale_w_dq=positive(1, Hcq, scale=1e-2),
            dequant_scale_w_dkv_kr=positive(1, Hckv + Dr, scale=1e-2),
        )
    if uq8:
        call |= dict(dequant_scale_w_uq_qr=positive(1, N * (D + Dr), scale=2e-3))
        if smooth:
            call |= dict(smooth_scales_cq=positive(1, Hcq))
    if kv == "channel":
        call |= dict(quant_scale_ckv=positive(1, Hckv, scale=50), quant_scale_ckr=positive(1, Dr, scale=50))
    if kv == "tensor":
        call |= dict(quant_scale_ckv=positive(*[(1,), (1, 1), (1, Hckv)][rng.integers(3)], scale=50))
    if kv == "tile":
        call |= dict(k_nope_clip_alpha=np.array([rng.uniform(0.6, 1)], np.float32), ckvkr_repo_mode=1, quant_scale_repo_mode=1)
    call |= dict(weight_quant_mode=modes[0], kv_cache_quant_mode=modes[1], query_quant_mode=modes[2], cache_mode=mode)

    rows = {"BSND": axes, "TND": axes}.get(mode, (blocks, block))
    width = Hckv + 2 * Dr + 4 * (Hckv // 128) if kv == "tile" else Hckv
    call["kv_cache"] = int8(*rows, 1, width) if kv else normal(*rows, 1, width)
    if kv == "tile":
        call["kv_cache"] &= 63  # no pattern of the bytes is a NaN
    call["kr_cache"] = np.zeros(0, np.int8) if kv == "tile" else int8(*rows, 1, Dr) if kv == "channel" else normal(*rows, 1, Dr)
    if mode in ("PA_BSND", "PA_NZ"):
        call["cache_index"] = rng.integers(-3 if negative else 0, blocks * block, axes)  # slots may repeat
    elif mode.startswith("PA_BLK"):
        owned = [-(-length // block) for length in lengths]
        shape = (sum(owned),) if merged else (B, owned[0])
        call["cache_index"] = rng.integers(-1 if negative else 0, blocks, shape)
        if merged:
            call["actual_seq_len"] = np.cumsum(lengths).astype(np.int32)
    return call


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


# The oracle: the formulas of the specification for one token and one head at a time.


def bf16(v: np.ndarray) -> np.ndarray:
    """float64 rounded once, half to even, to the eight significant bits of bfloat16."""
    mantissa, exponent = np.frexp(v)
    return np.ldexp(np.rint(mantissa * 256), exponent - 8)


def clamp8(v: np.ndarray) -> np.ndarray:
    return np.minimum(np.maximum(np.rint(v), -128), 127)


def dynamic8(z: np.ndarray) -> tuple[np.ndarray, float]:
    a = float(np.max(np.abs(z)))
    return (clamp8(z * (127 / a)), a / 127) if a > 0 else (np.zeros_like(z), 0.0)


def away(v: np.ndarray) -> np.ndarray:
    """float16, then an integer, both half away from zero, as the device casts."""
    for bits in (10, 0):
        unit = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(v), 1e-30))) - bits) if bits else 1.0
        v = np.sign(v) * np.floor(np.abs(v) / unit + 0.5) * unit
    return v


def rope1(x: np.ndarray, sin: np.ndarray, cos: np.ndarray) -> np.ndarray:
    h = len(x) // 2
    out = np.empty(len(x))
    for j in range(h):
        out[j] = x[2 * j] * cos[j] - x[2 * j + 1] * sin[j]
        out[h + j] = x[2 * j + 1] * cos[h + j] + x[2 * j] * sin[h + j]
    return out


def plain(w: np.ndarray) -> np.ndarray:
    if w.ndim == 2:
        return w.astype(float)
    n1, k1, _, c0 = w.shape
    flat, K, N = w.reshape(-1), k1 * 16, n1 * c0
    out = np.empty((K, N))
    for n in range(N):
        for k in range(K):
            out[k, n] = flat[(n // c0) * (K * c0) + k * c0 + n % c0]
    return out


def element(mode: str, cache: np.ndarray, slot: int, h: int, block: int) -> int:
    """The flat position of element h of a slot's row."""
    H = cache.shape[-1]
    if not mode.endswith("NZ"):
        return slot * H + h
    c0 = 32 // cache.itemsize
    return slot // block * block * H + (h // c0) * block * c0 + slot % block * c0 + h % c0


def slot_of(call: dict[str, Any], t: int) -> int:
    mode, x, index = call["cache_mode"], call["token_x"], call.get("cache_index")
    if mode in ("BSND", "TND"):
        return t
    if not mode.startswith("PA_BLK"):
        return int(index.reshape(-1)[t])
    block = call["kv_cache"].shape[1]
    if x.ndim == 3:
        b, s = divmod(t, x.shape[1])
        block_id = int(index[b, s // block])
    else:
        start = base = 0
        for end in call["actual_seq_len"]:
            if t < end:
                break
            base += -(-(int(end) - start) // block)
            start = int(end)
        s = t - start
        block_id = int(index[base + s // block])
    return -1 if block_id < 0 else block_id * block + s % block


def oracle(call: dict[str, Any], rounding: str = "half_even", scenario: str = "NO_QUANT") -> dict[str, np.ndarray]:
    """The results and the caches of a V3 call, in float64 or the cache's dtype."""
    token8, uq8, kv, _ = SCENARIOS[scenario]
    real = call["weight_uk"].dtype
    r = bf16 if real == BF16 else (lambda v: v)
    f = {
        name: value.astype(float)
        for name, value in call.items()
        if isinstance(value, np.ndarray) and name not in ("kv_cache", "kr_cache", "cache_index")
    }
    w_dq, w_uq, w_dkv = plain(call["weight_dq"]), plain(call["weight_uq_qr"]), plain(call["weight_dkv_kr"])
    x = f["token_x"].reshape(-1, f["token_x"].shape[-1])
    T, (N, D, Hckv), Dr = len(x), call["weight_uk"].shape, f["rope_sin"].shape[-1]
    sin, cos = f["rope_sin"].reshape(T, Dr), f["rope_cos"].reshape(T, Dr)
    alpha_q, alpha_kv = call.get("qc_qr_scale", 1.0), call.get("kc_scale", 1.0)
    eps_cq, eps_ckv = call.get("rmsnorm_epsilon_cq", 1e-5), call.get("rmsnorm_epsilon_ckv", 1e-5)
    kv_cache, kr_cache = call["kv_cache"].copy(), call["kr_cache"].copy()
    flat_kv, flat_kr = kv_cache.reshape(-1), kr_cache.reshape(-1)
    out: dict[str, list[Any]] = {
        name: [] for name in ("query", "query_rope", "dequant_scale_q_nope", "query_norm", "dequant_scale_q_norm")
    }

    def norm(v: np.ndarray, gamma: np.ndarray, eps: float, alpha: float) -> np.ndarray:
        return v / math.sqrt(float((v * v).mean()) + eps) * gamma * alpha

    for t in range(T):
        if token8:
            token = f["dequant_scale_x"][t, 0]
            raw_cq = x[t] @ w_dq * token * f["dequant_scale_w_dq"][0]
            raw_kv = x[t] @ w_dkv * token * f["dequant_scale_w_dkv_kr"][0]
        else:
            raw_cq, raw_kv = r(x[t] @ w_dq), r(x[t] @ w_dkv)
        y = norm(raw_cq, f["rmsnorm_gamma_cq"], eps_cq, alpha_q)
        if uq8:
            c, s_t = dynamic8(y * f["smooth_scales_cq"][0] if "smooth_scales_cq" in f else y)
            q = c @ w_uq * s_t * f["dequant_scale_w_uq_qr"][0]
        else:
            c, s_t = r(y), 0.0
            q = r(c @ w_uq)
        out["query_norm"].append(c)
        out["dequant_scale_q_norm"].append([s_t])
        heads = []
        for n in range(N):
            head = q[n * (D + Dr) : (n + 1) * (D + Dr)]
            query, rope, scale = r(r(head[:D]) @ f["weight_uk"][n]), r(rope1(head[D:], sin[t], cos[t])), 0.0
            if kv == "tensor":
                a = float(np.abs(query).max())
                scale = a / 127
                query = dynamic8(query)[0] if rounding == "half_even" else away(query * (127 / a))
                rope = r(rope * f["quant_scale_ckv"].reshape(-1)[0] / scale)
            heads.append((query, rope, [scale]))
        for name, values in zip(("query", "query_rope", "dequant_scale_q_nope"), zip(*heads, strict=True), strict=True):
            out[name].append(values)
        kc = norm(raw_kv[:Hckv], f["rmsnorm_gamma_ckv"], eps_ckv, alpha_kv)
        kr = r(rope1(raw_kv[Hckv:], sin[t], cos[t]))
        slot = slot_of(call, t)
        if slot < 0 or call["kv_cache"].size == 0:
            continue
        if kv == "tile":
            row, scales = [], []
            for tile in kc.reshape(-1, 128):
                bound = f["k_nope_clip_alpha"][0] * np.abs(tile).max()
                row.append(clamp8(np.minimum(np.maximum(tile, -bound), bound) * (127 / bound)).astype(np.int8))
                scales.append(bound / 127)
            data = np.concatenate(row).tobytes() + kr.astype(BF16).tobytes() + np.array(scales, "<f4").tobytes()
            flat_kv[slot * len(data) : (slot + 1) * len(data)] = np.frombuffer(data, np.int8)
            continue
        if kv == "channel":
            kc, kr = clamp8(kc * f["quant_scale_ckv"][0]), clamp8(kr * f["quant_scale_ckr"][0])
        elif kv == "tensor":
            kc = clamp8(kc * f["quant_scale_ckv"].reshape(-1)[0])
        else:
            kc = r(kc)
        block = call["kv_cache"].shape[1]
        for h in range(Hckv):
            flat_kv[element(call["cache_mode"], kv_cache, slot, h, block)] = kc[h]
        for h in range(Dr):
            flat_kr[element(call["cache_mode"], kr_cache, slot, h, block)] = kr[h]
    made = {name: np.array(values) for name, values in out.items()}
    return made | {"kv_cache": kv_cache, "kr_cache": kr_cache}


# Calls, and what to compare them by.

FUNCTIONS = {1: ds.mla_prolog, 2: ds.mla_prolog_v2, 3: ds.mla_prolog_v3}


def call(arguments: dict[str, Any], version: int = 3, **more: Any) -> dict[str, Any]:
    """Results by name, the caches as they are afterwards among them."""
    result = FUNCTIONS[version](**for_version(arguments, version), **more)
    return {**result._asdict(), "kv_cache": arguments["kv_cache"], "kr_cache": arguments["kr_cache"]}


def parts(name: str, values: np.ndarray, latent: int, rope: int) -> dict[str, np.ndarray]:
    """A cache row quantised by tiles in its three parts."""
    if name != "kv_cache" or values.dtype != np.int8 or values.shape[-1] in (32, 64, 256):
        return {name: values}
    rows = np.ascontiguousarray(values.reshape(-1, values.shape[-1]))
    return {
        "tile_q": rows[:, :latent],
        "tile_kr": rows[:, latent : latent + 2 * rope].copy().view(BF16),
        "tile_scale": rows[:, latent + 2 * rope :].copy().view(np.float32),
    }


def agree(got: dict[str, Any], want: dict[str, Any], flips: Counter | None = None, latent: int = 256, rope: int = 32) -> None:
    """int8 within one unit, the others within their dtype's tolerance; `flips` counts what is not the same."""
    for name, value in got.items():
        if value is None or name not in want:
            continue
        expected = parts(name, np.asarray(want[name]), latent, rope)
        for part, actual in parts(name, value, latent, rope).items():
            wanted = expected[part].reshape(actual.shape)
            if actual.dtype == np.int8:
                assert np.abs(actual.astype(int) - wanted.astype(int)).max(initial=0) <= 1, name
            else:
                # A scale follows the largest of bfloat16 values.
                assert_close(actual.astype(BF16) if actual.dtype == np.float32 and flips is not None else actual, wanted)
            if flips is not None and actual.dtype != np.float32:
                flips[part, "off"] += int((actual != wanted.astype(actual.dtype)).sum())
                flips[part, "all"] += actual.size
