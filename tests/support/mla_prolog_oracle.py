"""MlaProlog's formulas for one token and one head at a time, in float64: an oracle that shares no code with the operator."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from support.mla_prolog_cases import BF16, FLOAT8, SCENARIOS


def bf16(v: np.ndarray) -> np.ndarray:
    """float64 rounded once, half to even, to the eight significant bits of bfloat16."""
    mantissa, exponent = np.frexp(v)
    return np.ldexp(np.rint(mantissa * 256), exponent - 8)


def clamp8(v: np.ndarray) -> np.ndarray:
    return np.minimum(np.maximum(np.rint(v), -128), 127)


def dynamic8(z: np.ndarray) -> tuple[np.ndarray, float]:
    a = float(np.max(np.abs(z)))
    return (clamp8(z * (127 / a)), a / 127) if a > 0 else (np.zeros_like(z), 0.0)


def float8(v: np.ndarray) -> np.ndarray:
    """Four significant bits, the last one at least 2^-9; half to even, at most 448."""
    size = np.minimum(np.abs(v), 448)
    unit = 2.0 ** (np.maximum(np.floor(np.log2(np.maximum(size, 1e-300))), -6) - 3)
    return np.sign(v) * np.rint(size / unit) * unit


def dynamic_float8(z: np.ndarray) -> tuple[np.ndarray, float]:
    scale = float(np.max(np.abs(z))) / 448
    return float8(z / scale) if scale else z, scale


def blocks_float8(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each 32 values the power of two with which the largest is in [256, 512)."""
    scale = np.array([2.0 ** (math.floor(math.log2(block.max())) - 8) for block in np.abs(z).reshape(-1, 32)])
    return float8(z / scale.repeat(32)), scale


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
        self.int8 = SCENARIOS[scenario]
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
        if self.int8.blocks:
            return (self.x[t] * self.f["dequant_scale_x"][t].repeat(32)) @ self.in_blocks(weight, scale)
        if self.int8.token:
            return self.x[t] @ weight * self.f["dequant_scale_x"][t, 0] * self.f[scale][0]
        return self.rounded(self.x[t] @ weight)

    def in_blocks(self, weight: np.ndarray, scale: str) -> np.ndarray:
        return weight * self.f[scale].repeat(32, axis=1).T

    def dynamic(self, z: np.ndarray) -> tuple[np.ndarray, float]:
        return dynamic_float8(z) if self.int8.code == FLOAT8 else dynamic8(z)

    def norm(self, v: np.ndarray, which: str, alpha: str) -> np.ndarray:
        eps = self.call.get(f"rmsnorm_epsilon_{which}", 1e-5)
        return v / math.sqrt(float((v * v).mean()) + eps) * self.f[f"rmsnorm_gamma_{which}"] * self.call.get(alpha, 1.0)

    def query_of_token(self, t: int, rounding: str) -> dict[str, Any]:
        """What the call returns for a token."""
        f, r = self.f, self.rounded
        y = self.norm(self.projected(t, self.w_dq, "dequant_scale_w_dq"), "cq", "qc_qr_scale")
        if self.int8.blocks:
            c, s_t = blocks_float8(r(y))
            q = (c * s_t.repeat(32)) @ self.in_blocks(self.w_uq, "dequant_scale_w_uq_qr")
        elif self.int8.uq:
            c, s_t = self.dynamic(y * f["smooth_scales_cq"][0] if "smooth_scales_cq" in f else y)
            q = c @ self.w_uq * s_t * f["dequant_scale_w_uq_qr"][0]
        else:
            c, s_t = r(y), 0.0
            q = r(c @ self.w_uq)
        N, D, _ = f["weight_uk"].shape
        heads = []
        for n, head in enumerate(q.reshape(N, -1)):
            query, rope, scale = r(r(head[:D]) @ f["weight_uk"][n]), r(rope1(head[D:], self.sin[t], self.cos[t])), 0.0
            if self.int8.kv == "tensor":
                a = float(np.abs(query).max())
                (codes, scale), query = self.dynamic(query), query
                query = codes if rounding == "half_even" else away(query * (127 / a))
                rope = r(rope * f["quant_scale_ckv"].reshape(-1)[0] / scale)
            heads.append((query, rope, [scale]))
        made = dict(zip(("query", "query_rope", "dequant_scale_q_nope"), zip(*heads, strict=True), strict=True))
        return made | {"query_norm": c, "dequant_scale_q_norm": np.atleast_1d(s_t)}

    def cache_row_of_token(self, t: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows that are stored; with tiles the one row of bytes, and none."""
        f, r, latent = self.f, self.rounded, self.f["weight_uk"].shape[2]
        raw = self.projected(t, self.w_dkv, "dequant_scale_w_dkv_kr")
        kc, kr = self.norm(raw[:latent], "ckv", "kc_scale"), r(rope1(raw[latent:], self.sin[t], self.cos[t]))
        if self.int8.kv == "tile":
            if self.int8.code == FLOAT8:
                return float8_tile_row(kc, kr), kr[:0]
            return tile_row(kc, kr, f["k_nope_clip_alpha"][0]), kr[:0]
        if self.int8.kv == "channel":
            return clamp8(kc * f["quant_scale_ckv"][0]), clamp8(kr * f["quant_scale_ckr"][0])
        if self.int8.kv == "tensor":
            scaled = kc * f["quant_scale_ckv"].reshape(-1)[0]
            return float8(scaled) if self.int8.code == FLOAT8 else clamp8(scaled), kr
        return r(kc), kr


def tile_row(latent: np.ndarray, rope: np.ndarray, alpha: float) -> np.ndarray:
    row, scales = [], []
    for tile in latent.reshape(-1, 128):
        bound = alpha * np.abs(tile).max()
        row.append(clamp8(np.minimum(np.maximum(tile, -bound), bound) * (127 / bound)).astype(np.int8))
        scales.append(bound / 127)
    data = np.concatenate(row).tobytes() + rope.astype(BF16).tobytes() + np.array(scales, "<f4").tobytes()
    return np.frombuffer(data, np.int8)


def float8_tile_row(latent: np.ndarray, rope: np.ndarray) -> np.ndarray:
    tiles = latent.reshape(-1, 128)
    scale = np.maximum(np.abs(tiles).max(axis=1), 1e-4) / 448
    data = float8(tiles / scale[:, None]).astype(FLOAT8).tobytes() + rope.astype(BF16).tobytes() + scale.astype("<f4").tobytes()
    return np.frombuffer(data, FLOAT8)


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
