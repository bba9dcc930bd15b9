"""Random calls of MlaProlog, and an oracle that works token by token in float64 and shares no code with the operator."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

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

    def int8(self, *shape: int) -> np.ndarray:
        return self.rng.integers(-127, 128, shape, np.int8)

    def positive(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (self.rng.uniform(0.5, 1.5, shape) * scale).astype(np.float32)

    def gamma(self, size: int) -> np.ndarray:
        return (1 + 0.2 * self.normal(size).astype(float)).astype(self.real)

    def weight(self, k: int, n: int, quantised: bool, nz: bool) -> np.ndarray:
        w = self.int8(k, n) if quantised else self.normal(k, n, scale=1 / math.sqrt(k))
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
    modes = SCENARIOS[scenario][3]
    if SCENARIOS[scenario][2] == "tile":
        size = size._replace(Hckv=128 * tiles)
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
    token8, uq8, _, _ = SCENARIOS[scenario]
    He, Hcq, N, D, Hckv, Dr = size
    angle = values.rng.uniform(0, 6.3, (*axes, Dr))
    return dict(
        token_x=values.int8(*axes, He) if token8 else values.normal(*axes, He),
        weight_dq=values.weight(He, Hcq, token8, nz),
        weight_uq_qr=values.weight(Hcq, N * (D + Dr), uq8, nz),
        weight_uk=values.normal(N, D, Hckv, scale=1 / math.sqrt(D or 1)),
        weight_dkv_kr=values.weight(He, Hckv + Dr, token8, nz),
        rmsnorm_gamma_cq=values.gamma(Hcq),
        rmsnorm_gamma_ckv=values.gamma(Hckv),
        rope_sin=np.sin(angle).astype(values.real),
        rope_cos=np.cos(angle).astype(values.real),
    )


def _scales(values: Values, size: Sizes, scenario: str, tokens: int, smooth: bool) -> dict[str, Any]:
    token8, uq8, kv, _ = SCENARIOS[scenario]
    _, Hcq, N, D, Hckv, Dr = size
    positive, made = values.positive, dict[str, Any]()
    if token8:
        made |= dict(
            dequant_scale_x=positive(tokens, 1, scale=1e-2),
            dequant_scale_w_dq=positive(1, Hcq, scale=1e-2),
            dequant_scale_w_dkv_kr=positive(1, Hckv + Dr, scale=1e-2),
        )
    if uq8:
        made |= dict(dequant_scale_w_uq_qr=positive(1, N * (D + Dr), scale=2e-3))
        if smooth:
            made |= dict(smooth_scales_cq=positive(1, Hcq))
    if kv == "channel":
        made |= dict(quant_scale_ckv=positive(1, Hckv, scale=50), quant_scale_ckr=positive(1, Dr, scale=50))
    if kv == "tensor":
        made |= dict(quant_scale_ckv=positive(*[(1,), (1, 1), (1, Hckv)][values.rng.integers(3)], scale=50))
    if kv == "tile":
        alpha = np.array([values.rng.uniform(0.6, 1)], np.float32)
        made |= dict(k_nope_clip_alpha=alpha, ckvkr_repo_mode=1, quant_scale_repo_mode=1)
    return made


def _caches(values: Values, size: Sizes, scenario: str, rows: tuple[int, ...]) -> dict[str, Any]:
    kv, latent, rope = SCENARIOS[scenario][2], size.Hckv, size.Dr
    if kv == "tile":
        rows_of_bytes = values.int8(*rows, 1, latent + 2 * rope + 4 * (latent // 128))
        return dict(kv_cache=rows_of_bytes & 63, kr_cache=np.zeros(0, np.int8))  # no pattern of the bytes is a NaN
    kv_cache = values.int8(*rows, 1, latent) if kv else values.normal(*rows, 1, latent)
    return dict(kv_cache=kv_cache, kr_cache=(values.int8 if kv == "channel" else values.normal)(*rows, 1, rope))


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


class Formulas:
    """Those of one V3 call, in float64."""

    def __init__(self, call: dict[str, Any], scenario: str) -> None:
        self.call = call
        self.token8, self.uq8, self.kv, _ = SCENARIOS[scenario]
        self.rounded = bf16 if call["weight_uk"].dtype == BF16 else (lambda v: v)
        self.f = {
            name: value.astype(float)
            for name, value in call.items()
            if isinstance(value, np.ndarray) and name not in ("kv_cache", "kr_cache", "cache_index")
        }
        self.w_dq, self.w_uq, self.w_dkv = (plain(call[name]) for name in ("weight_dq", "weight_uq_qr", "weight_dkv_kr"))
        self.x, self.sin, self.cos = (
            self.f[name].reshape(-1, self.f[name].shape[-1]) for name in ("token_x", "rope_sin", "rope_cos")
        )

    def projected(self, t: int, weight: np.ndarray, scale: str) -> np.ndarray:
        if self.token8:
            return self.x[t] @ weight * self.f["dequant_scale_x"][t, 0] * self.f[scale][0]
        return self.rounded(self.x[t] @ weight)

    def norm(self, v: np.ndarray, which: str, alpha: str) -> np.ndarray:
        eps = self.call.get(f"rmsnorm_epsilon_{which}", 1e-5)
        return v / math.sqrt(float((v * v).mean()) + eps) * self.f[f"rmsnorm_gamma_{which}"] * self.call.get(alpha, 1.0)

    def query_of_token(self, t: int, rounding: str) -> dict[str, Any]:
        """What the call returns for a token."""
        f, r = self.f, self.rounded
        y = self.norm(self.projected(t, self.w_dq, "dequant_scale_w_dq"), "cq", "qc_qr_scale")
        if self.uq8:
            c, s_t = dynamic8(y * f["smooth_scales_cq"][0] if "smooth_scales_cq" in f else y)
            q = c @ self.w_uq * s_t * f["dequant_scale_w_uq_qr"][0]
        else:
            c, s_t = r(y), 0.0
            q = r(c @ self.w_uq)
        N, D, _ = f["weight_uk"].shape
        heads = []
        for n, head in enumerate(q.reshape(N, -1)):
            query, rope, scale = r(r(head[:D]) @ f["weight_uk"][n]), r(rope1(head[D:], self.sin[t], self.cos[t])), 0.0
            if self.kv == "tensor":
                a = float(np.abs(query).max())
                scale = a / 127
                query = dynamic8(query)[0] if rounding == "half_even" else away(query * (127 / a))
                rope = r(rope * f["quant_scale_ckv"].reshape(-1)[0] / scale)
            heads.append((query, rope, [scale]))
        made = dict(zip(("query", "query_rope", "dequant_scale_q_nope"), zip(*heads, strict=True), strict=True))
        return made | {"query_norm": c, "dequant_scale_q_norm": [s_t]}

    def cache_row_of_token(self, t: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows that are stored; with tiles the one row of bytes, and none."""
        f, r, latent = self.f, self.rounded, self.f["weight_uk"].shape[2]
        raw = self.projected(t, self.w_dkv, "dequant_scale_w_dkv_kr")
        kc, kr = self.norm(raw[:latent], "ckv", "kc_scale"), r(rope1(raw[latent:], self.sin[t], self.cos[t]))
        if self.kv == "tile":
            return tile_row(kc, kr, f["k_nope_clip_alpha"][0]), kr[:0]
        if self.kv == "channel":
            return clamp8(kc * f["quant_scale_ckv"][0]), clamp8(kr * f["quant_scale_ckr"][0])
        if self.kv == "tensor":
            return clamp8(kc * f["quant_scale_ckv"].reshape(-1)[0]), kr
        return r(kc), kr


def tile_row(latent: np.ndarray, rope: np.ndarray, alpha: float) -> np.ndarray:
    row, scales = [], []
    for tile in latent.reshape(-1, 128):
        bound = alpha * np.abs(tile).max()
        row.append(clamp8(np.minimum(np.maximum(tile, -bound), bound) * (127 / bound)).astype(np.int8))
        scales.append(bound / 127)
    data = np.concatenate(row).tobytes() + rope.astype(BF16).tobytes() + np.array(scales, "<f4").tobytes()
    return np.frombuffer(data, np.int8)


def oracle(call: dict[str, Any], rounding: str = "half_even", scenario: str = "NO_QUANT") -> dict[str, np.ndarray]:
    """The results and the caches of a V3 call, in float64 or the cache's dtype."""
    formulas = Formulas(call, scenario)
    tokens = range(len(formulas.x))
    queries = [formulas.query_of_token(t, rounding) for t in tokens]
    names = ("query", "query_rope", "dequant_scale_q_nope", "query_norm", "dequant_scale_q_norm")
    caches = {name: call[name].copy() for name in ("kv_cache", "kr_cache")}
    for t in tokens:
        slot = slot_of(call, t)
        if slot >= 0 and call["kv_cache"].size:
            for cache, row in zip(caches.values(), formulas.cache_row_of_token(t), strict=True):
                flat = cache.reshape(-1)
                for h, value in enumerate(row):
                    flat[element(call["cache_mode"], cache, slot, h, call["kv_cache"].shape[1])] = value
    return {name: np.array([query[name] for query in queries]) for name in names} | caches


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
