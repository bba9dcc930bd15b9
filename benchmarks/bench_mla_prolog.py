"""mla_prolog against torch eager at DeepSeek-V3's sizes, bfloat16 and int8 (FULL_KV): verified in float64, timed in turns.

    python benchmarks/bench_mla_prolog.py [--heads 16] [--rounds 9] [--threads 2]

"plain" has the specification's (K, N) weights, "NZ" their NZ storage, "packed" `PackedWeight`s. Of torch, "(N, K)"
keeps its weights as torch.nn.Linear does, which is what its bfloat16 product likes best, "(K, N)" as the specification does.
The floor is one read of the weights.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import decodestep as ds
from harness import Call, Report, options, torch

BF16 = np.dtype(ml_dtypes.bfloat16)
He, Hcq, D, Hckv, Dr, BLOCK, BLOCKS = 7168, 1536, 128, 512, 64, 16, 8
TOKENS = (1, 4, 16)
WEIGHTS = ("weight_dq", "weight_uq_qr", "weight_dkv_kr")


def problem(rng: np.random.Generator, T: int, N: int, weights: dict[str, np.ndarray]) -> dict[str, Any]:
    angle = rng.uniform(0, 6.3, (T, Dr // 2)).repeat(2, axis=1)
    return weights | dict(
        token_x=rng.standard_normal((T, He), np.float32).astype(BF16),
        rmsnorm_gamma_cq=np.ones(Hcq, BF16),
        rmsnorm_gamma_ckv=np.ones(Hckv, BF16),
        rope_sin=np.sin(angle).astype(BF16),
        rope_cos=np.cos(angle).astype(BF16),
        cache_index=rng.permutation(BLOCKS * BLOCK)[:T],
        kv_cache=np.zeros((BLOCKS, BLOCK, 1, Hckv), BF16),
        kr_cache=np.zeros((BLOCKS, BLOCK, 1, Dr), BF16),
    )


def truth(p: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """query and query_rope in float64, without the roundings on the way."""
    w = {name: p[name].astype(float) for name in (*WEIGHTS, "weight_uk", "token_x", "rope_sin", "rope_cos")}
    c = w["token_x"] @ w["weight_dq"]
    c /= np.sqrt((c * c).mean(-1, keepdims=True) + 1e-5)
    q = (c @ w["weight_uq_qr"]).reshape(len(c), -1, D + Dr)
    sin, cos, even, odd = w["rope_sin"][:, None], w["rope_cos"][:, None], q[..., D::2], q[..., D + 1 :: 2]
    h = Dr // 2
    rope = np.concatenate([even * cos[..., :h] - odd * sin[..., :h], odd * cos[..., h:] + even * sin[..., h:]], -1)
    return np.einsum("tnd,ndh->tnh", q[..., :D], w["weight_uk"]), rope


def verify(name: str, made: tuple[Any, ...], expected: tuple[np.ndarray, np.ndarray], bound: float = 0.02) -> None:
    for got, want in zip(made, expected, strict=False):
        got = got.float().numpy() if torch is not None and isinstance(got, torch.Tensor) else got.astype(float)
        error = np.abs(got - want).max() / np.abs(want).max()
        assert error < bound, f"{name} is off by {error:.3f} of the largest value"


def tensor(a: np.ndarray) -> Any:
    return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16) if a.dtype == BF16 else torch.from_numpy(a)


def norm(x: Any) -> Any:
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)


def rope(x: Any, sin: Any, cos: Any) -> Any:
    even, odd, h = x[..., 0::2].float(), x[..., 1::2].float(), Dr // 2
    return torch.cat([even * cos[..., :h] - odd * sin[..., :h], odd * cos[..., h:] + even * sin[..., h:]], -1).bfloat16()


def quantised(x: Any) -> tuple[Any, Any]:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / scale).to(torch.int8), scale


def torch_call(p: dict[str, Any], transposed: bool) -> Call:
    t = {name: tensor(value) for name, value in p.items()}
    w = {name: t[name].t().contiguous() if transposed else t[name] for name in WEIGHTS}
    product = torch.nn.functional.linear if transposed else torch.matmul

    def run() -> tuple[Any, Any]:
        x, sin, cos = t["token_x"], t["rope_sin"].float(), t["rope_cos"].float()
        q = product(norm(product(x, w["weight_dq"])).bfloat16(), w["weight_uq_qr"]).view(len(x), -1, D + Dr)
        query = torch.bmm(q[..., :D].transpose(0, 1), t["weight_uk"]).transpose(0, 1)
        ckv = product(x, w["weight_dkv_kr"])
        t["kv_cache"].view(-1, Hckv).index_copy_(0, t["cache_index"], norm(ckv[:, :Hckv]).bfloat16())
        t["kr_cache"].view(-1, Dr).index_copy_(0, t["cache_index"], rope(ckv[:, Hckv:], sin, cos))
        return query, rope(q[..., D:], sin[:, None], cos[:, None])

    return run


def torch_int8_call(p: dict[str, Any]) -> Call:
    t = {name: tensor(value) for name, value in p.items()}

    def product(x: Any, scale: Any, name: str) -> Any:
        return torch._int_mm(x, t[name]).float() * scale * t[f"dequant_scale_{name.replace('weight', 'w')}"]

    def run() -> tuple[Any, Any]:
        x, x_scale, sin, cos = t["token_x"], t["dequant_scale_x"], t["rope_sin"].float(), t["rope_cos"].float()
        q = product(*quantised(norm(product(x, x_scale, "weight_dq"))), "weight_uq_qr").view(len(x), -1, D + Dr)
        query, scale = quantised(torch.bmm(q[..., :D].bfloat16().transpose(0, 1), t["weight_uk"]).transpose(0, 1).float())
        ckv = product(x, x_scale, "weight_dkv_kr")
        latent = torch.round(norm(ckv[:, :Hckv]) * t["quant_scale_ckv"]).clamp(-128, 127).to(torch.int8)
        t["kv_cache"].view(-1, Hckv).index_copy_(0, t["cache_index"], latent)
        t["kr_cache"].view(-1, Dr).index_copy_(0, t["cache_index"], rope(ckv[:, Hckv:], sin, cos))
        return query, rope(q[..., D:], sin[:, None], cos[:, None]) * t["quant_scale_ckv"] / scale

    return run


def int8_problem(p: dict[str, Any]) -> dict[str, Any]:
    """The same call in scenario FULL_KV."""
    made = dict(p, quant_scale_ckv=np.full(1, 30, np.float32), kv_cache=np.zeros(p["kv_cache"].shape, np.int8))
    for name, axis in (("token_x", 1), *((w, 0) for w in WEIGHTS)):
        wide = p[name].astype(np.float32)
        scale = np.abs(wide).max(axis, keepdims=True) / 127
        made[name] = np.rint(wide / scale).astype(np.int8)
        made["dequant_scale_x" if name == "token_x" else f"dequant_scale_{name.replace('weight', 'w')}"] = scale
    return made


def real_query(made: Any) -> tuple[np.ndarray, np.ndarray]:
    """What a FULL_KV result stands for."""
    scale = made.dequant_scale_q_nope
    return made.query * scale, made.query_rope.astype(np.float32) * scale / 30


def main() -> None:
    chosen = options(__doc__, heads=16, rounds=9, threads=2)
    report = Report("mla_prolog", chosen.threads)
    rng, N = np.random.default_rng(0), chosen.heads
    shapes = {
        "weight_dq": (He, Hcq),
        "weight_uq_qr": (Hcq, N * (D + Dr)),
        "weight_uk": (N, D, Hckv),
        "weight_dkv_kr": (He, Hckv + Dr),
    }
    plain = {name: (rng.standard_normal(shape, np.float32) / np.sqrt(shape[-2])).astype(BF16) for name, shape in shapes.items()}
    packed = plain | {name: ds.PackedWeight.from_array(plain[name]) for name in WEIGHTS}
    nz = plain | {name: ds.to_nz(plain[name]) for name in WEIGHTS}
    for T in TOKENS:
        p = problem(rng, T, N, plain)
        expected = truth(p)
        calls: dict[str, Call] = {
            "plain": lambda p=p: ds.mla_prolog(**p, backend="cpu"),
            "NZ": lambda p=p: ds.mla_prolog(**p | nz, backend="cpu"),
            "packed": lambda p=p: ds.mla_prolog(**p | packed, backend="cpu"),
        }
        if torch is not None:
            calls |= {"torch (N, K)": torch_call(p, True), "torch (K, N)": torch_call(p, False)}
        for name, call in calls.items():
            verify(name, call(), expected)
        report.case(f"bfloat16 N={N} T={T}", calls, chosen.rounds, sum(w.nbytes for w in plain.values()))
        p8 = int8_problem(p)
        nz8 = p8 | {name: ds.to_nz(p8[name]) for name in WEIGHTS}
        calls = {
            "plain": lambda p8=p8: ds.mla_prolog_v2(**p8, backend="cpu"),
            "NZ": lambda nz8=nz8: ds.mla_prolog_v2(**nz8, backend="cpu"),
        }
        for name, call in calls.items():
            verify(f"{name} int8", real_query(call()), expected, 0.05)
        if torch is not None:
            calls["torch _int_mm"] = torch_int8_call(p8)
        read = sum(p8[name].nbytes for name in (*WEIGHTS, "weight_uk"))
        report.case(f"int8 N={N} T={T}", calls, chosen.rounds, read)
    report.save()


if __name__ == "__main__":
    main()
