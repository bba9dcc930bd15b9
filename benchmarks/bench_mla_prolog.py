"""mla_prolog against torch eager at DeepSeek-V3's sizes, bfloat16 and int8 (FULL_KV): verified in float64, timed in turns.

    python benchmarks/bench_mla_prolog.py [--heads 16] [--tokens 1 4 16] [--repeats 9] [--threads 2]

"plain" has the specification's (K, N) weights, "NZ" their NZ storage, "packed" `PackedWeight`s. Of torch, "(N, K)"
keeps its weights as torch.nn.Linear does, which is what its bfloat16 product likes best, "(K, N)" as the specification does.
"One read" is of the weights, by one thread, at the bandwidth that a maximum over a large array reaches here.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import decodestep as ds

try:
    import torch
except ImportError:
    torch = None

BF16 = np.dtype(ml_dtypes.bfloat16)
He, Hcq, D, Hckv, Dr, BLOCK, BLOCKS = 7168, 1536, 128, 512, 64, 16, 8
WEIGHTS = ("weight_dq", "weight_uq_qr", "weight_dkv_kr")
Call = Callable[[], Any]


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


def interleaved(calls: dict[str, Call], repeats: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if turn:  # the first turn warms up
                times[name].append(time.perf_counter() - start)
    return times


def bandwidth() -> float:
    block = np.ones(2**26, np.float32)
    return block.nbytes / min(interleaved({"read": block.max}, 5)["read"])


def report(title: str, calls: dict[str, Call], args: Any, per_second: float, expected: Any = None) -> None:
    with ds.use_threads(args.threads):
        for name, call in calls.items():
            if expected:
                verify(name, call(), expected)
        times = interleaved(calls, args.repeats)
    base = statistics.median(times["plain"])
    print(f"\n{title}: verified")
    for name, seconds in times.items():
        median = statistics.median(seconds)
        print(
            f"  {name:13}{median * 1e3:8.2f} ms   x{median / base:6.2f} of plain   "
            f"x{median * per_second:6.1f} of one read   slowest/fastest {max(seconds) / min(seconds):.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="mla_prolog: verify, then time against torch")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if torch is None:
        print("torch is not installed: decodestep is timed alone")
    else:
        torch.set_num_threads(args.threads)
    rng, N = np.random.default_rng(0), args.heads
    shapes = {
        "weight_dq": (He, Hcq),
        "weight_uq_qr": (Hcq, N * (D + Dr)),
        "weight_uk": (N, D, Hckv),
        "weight_dkv_kr": (He, Hckv + Dr),
    }
    plain = {name: (rng.standard_normal(shape, np.float32) / np.sqrt(shape[-2])).astype(BF16) for name, shape in shapes.items()}
    packed = plain | {name: ds.PackedWeight.from_array(plain[name]) for name in WEIGHTS}
    nz = plain | {name: ds.to_nz(plain[name]) for name in WEIGHTS}
    weight_bytes, rate = sum(w.nbytes for w in plain.values()), bandwidth()
    print(
        f"He {He}, Hcq {Hcq}, Hckv {Hckv}, D {D}, Dr {Dr}, N {N}, bfloat16, {args.threads} threads; the weights are "
        f"{weight_bytes / 1e6:.1f} MB, one thread reads them in {weight_bytes / rate * 1e3:.2f} ms at {rate / 1e9:.1f} GB/s"
    )
    for T in args.tokens:
        p = problem(rng, T, N, plain)
        expected = truth(p)
        calls: dict[str, Call] = {
            "plain": lambda p=p: ds.mla_prolog(**p, backend="cpu"),
            "NZ": lambda p=p: ds.mla_prolog(**p | nz, backend="cpu"),
            "packed": lambda p=p: ds.mla_prolog(**p | packed, backend="cpu"),
        }
        if torch is not None:
            calls |= {"torch (N, K)": torch_call(p, True), "torch (K, N)": torch_call(p, False)}
        report(f"bfloat16, T = {T}", calls, args, rate / weight_bytes, expected)
        p8 = int8_problem(p)
        nz8 = p8 | {name: ds.to_nz(p8[name]) for name in WEIGHTS}
        calls = {
            "plain": lambda p8=p8: ds.mla_prolog_v2(**p8, backend="cpu"),
            "NZ": lambda nz8=nz8: ds.mla_prolog_v2(**nz8, backend="cpu"),
        }
        with ds.use_threads(args.threads):
            for name, call in calls.items():
                verify(f"{name} int8", real_query(call()), expected, 0.05)
        if torch is not None:
            calls["torch _int_mm"] = torch_int8_call(p8)
        int8_bytes = sum(p8[name].nbytes for name in (*WEIGHTS, "weight_uk"))
        report(f"int8, T = {T}", calls, args, rate / int8_bytes)


if __name__ == "__main__":
    main()
