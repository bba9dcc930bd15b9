"""mla_prolog against torch, eager and compiled, at DeepSeek-V3's sizes, in bfloat16 and int8 (FULL_KV).

    decodestep bench mla_prolog --heads 128 --tokens 1 4 16 --types bf16 --rounds 15 --threads 2 [--device cuda]

`--forms`: of our weights, "panels" (`PanelWeight`), "plain" (K, N), "NZ", and in bfloat16 the projections rounded to Q8_0 as
GGUF blocks: "q8_0" (`LinearPanels`) and "q8_0_rows" (`PackedWeight`). torch's weights have the layout that is fastest for its
products: (N, K) for bfloat16, (K, N) for `torch._int_mm`; `--compile 0` leaves torch.compile out. The floor is one read of the
weights at the bandwidth of plain reads in the same rounds; below it is the time of the products at the best rate of torch's
square matrices. A run of one number of heads and one type takes less than a minute after torch has compiled its code.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

import decodestep as ds
from decodestep.ops.linear import Format, LinearPanels, PackedWeight
from gpu.device import KINDS
from measuring.harness import SLOWEST_CALL_SECONDS, Call, Report, options, run_main, torch

BF16 = np.dtype(ml_dtypes.bfloat16)
He, Hcq, D, Hckv, Dr, BLOCK = 7168, 1536, 128, 512, 64, 16
WEIGHTS = ("weight_dq", "weight_uq_qr", "weight_dkv_kr")
CKV_SCALE = 30.0


def weights(rng: np.random.Generator, N: int) -> dict[str, np.ndarray]:
    shapes = {
        "weight_dq": (He, Hcq),
        "weight_uq_qr": (Hcq, N * (D + Dr)),
        "weight_uk": (N, D, Hckv),
        "weight_dkv_kr": (He, Hckv + Dr),
    }
    return {name: (rng.standard_normal(shape, np.float32) / np.sqrt(shape[-2])).astype(BF16) for name, shape in shapes.items()}


def problem(rng: np.random.Generator, T: int, given: dict[str, np.ndarray]) -> dict[str, Any]:
    angle, blocks = rng.uniform(0, 6.3, (T, Dr // 2)).repeat(2, axis=1), -(-T // BLOCK)
    return given | dict(
        token_x=rng.standard_normal((T, He), np.float32).astype(BF16),
        rmsnorm_gamma_cq=np.ones(Hcq, BF16),
        rmsnorm_gamma_ckv=np.ones(Hckv, BF16),
        rope_sin=np.sin(angle).astype(BF16),
        rope_cos=np.cos(angle).astype(BF16),
        cache_index=rng.permutation(blocks * BLOCK)[:T],
        kv_cache=np.zeros((blocks, BLOCK, 1, Hckv), BF16),
        kr_cache=np.zeros((blocks, BLOCK, 1, Dr), BF16),
    )


def int8_weights(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    made = dict(given)
    for name in WEIGHTS:
        wide = given[name].astype(np.float32)
        scale = np.abs(wide).max(0, keepdims=True) / 127
        made[name] = np.rint(wide / scale).astype(np.int8)
        made[f"dequant_scale_{name.replace('weight', 'w')}"] = scale
    return made


def int8_problem(p: dict[str, Any], given: dict[str, np.ndarray]) -> dict[str, Any]:
    """The same call in scenario FULL_KV."""
    wide = p["token_x"].astype(np.float32)
    scale = np.abs(wide).max(1, keepdims=True) / 127
    return (
        p
        | given
        | dict(
            token_x=np.rint(wide / scale).astype(np.int8),
            dequant_scale_x=scale,
            quant_scale_ckv=np.full(1, CKV_SCALE, np.float32),
            kv_cache=np.zeros(p["kv_cache"].shape, np.int8),
        )
    )


def truth(p: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """query and query_rope in float32, without the roundings on the way."""
    w = {name: p[name].astype(np.float32) for name in (*WEIGHTS, "weight_uk", "token_x", "rope_sin", "rope_cos")}
    c = w["token_x"] @ w["weight_dq"]
    c /= np.sqrt((c * c).mean(-1, keepdims=True) + 1e-5)
    q = (c @ w["weight_uq_qr"]).reshape(len(c), -1, D + Dr)
    sin, cos, even, odd = w["rope_sin"][:, None], w["rope_cos"][:, None], q[..., D::2], q[..., D + 1 :: 2]
    h = Dr // 2
    rope = np.concatenate([even * cos[..., :h] - odd * sin[..., :h], odd * cos[..., h:] + even * sin[..., h:]], -1)
    return (q[..., :D].swapaxes(0, 1) @ w["weight_uk"]).swapaxes(0, 1), rope


def verify(name: str, made: Sequence[Any], expected: tuple[np.ndarray, np.ndarray], bound: float) -> None:
    for got, want in zip(made, expected, strict=False):
        got = got.float().numpy() if torch is not None and isinstance(got, torch.Tensor) else got.astype(np.float32)
        error = np.abs(got - want).max() / np.abs(want).max()
        assert error < bound, f"{name} is off by {error:.3f} of the largest value"


def real_query(made: Any) -> tuple[Any, Any]:
    """What a FULL_KV result stands for: of ours, or (query, query_rope, scale) of torch."""
    query, rope, scale = (made.query, made.query_rope, made.dequant_scale_q_nope) if hasattr(made, "query") else made
    wide = rope.float() if hasattr(rope, "float") else rope.astype(np.float32)
    return query * scale, wide * scale / CKV_SCALE


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


def torch_bf16(t: dict[str, Any]) -> Any:
    product = torch.nn.functional.linear
    x, sin, cos = t["token_x"], t["rope_sin"].float(), t["rope_cos"].float()
    q = product(norm(product(x, t["weight_dq"])).bfloat16(), t["weight_uq_qr"]).view(len(x), -1, D + Dr)
    query = torch.bmm(q[..., :D].transpose(0, 1), t["weight_uk"]).transpose(0, 1)
    ckv = product(x, t["weight_dkv_kr"])
    t["kv_cache"].view(-1, Hckv).index_copy_(0, t["cache_index"], norm(ckv[:, :Hckv]).bfloat16())
    t["kr_cache"].view(-1, Dr).index_copy_(0, t["cache_index"], rope(ckv[:, Hckv:], sin, cos))
    return query, rope(q[..., D:], sin[:, None], cos[:, None])


def torch_int8(t: dict[str, Any]) -> Any:
    def product(x: Any, scale: Any, name: str) -> Any:
        return torch._int_mm(x, t[name]).float() * scale * t[f"dequant_scale_{name.replace('weight', 'w')}"]

    x, x_scale, sin, cos = t["token_x"], t["dequant_scale_x"], t["rope_sin"].float(), t["rope_cos"].float()
    q = product(*quantised(norm(product(x, x_scale, "weight_dq"))), "weight_uq_qr").view(len(x), -1, D + Dr)
    query, scale = quantised(torch.bmm(q[..., :D].bfloat16().transpose(0, 1), t["weight_uk"]).transpose(0, 1).float())
    ckv = product(x, x_scale, "weight_dkv_kr")
    latent = torch.round(norm(ckv[:, :Hckv]) * t["quant_scale_ckv"]).clamp(-128, 127).to(torch.int8)
    t["kv_cache"].view(-1, Hckv).index_copy_(0, t["cache_index"], latent)
    t["kr_cache"].view(-1, Dr).index_copy_(0, t["cache_index"], rope(ckv[:, Hckv:], sin, cos))
    return query, (rope(q[..., D:], sin[:, None], cos[:, None]) * t["quant_scale_ckv"] / scale).bfloat16(), scale


def torch_calls(p: dict[str, Any], int8: bool, compiled: bool) -> dict[str, Call]:
    tensors = {name: tensor(value.copy() if "cache" in name else value) for name, value in p.items()}
    if not int8:
        tensors |= {name: tensors[name].t().contiguous() for name in WEIGHTS}
    function = torch_int8 if int8 else torch_bf16
    calls = {"torch eager": lambda: function(tensors)}
    if compiled:
        torch.compiler.reset()  # of one function it compiles eight shapes, and runs further ones as they are
        compiled_function = torch.compile(function, dynamic=False)
        calls["torch compiled"] = lambda: compiled_function(tensors)
    return calls


def in_form(given: dict[str, np.ndarray], form: str) -> dict[str, Any]:
    if form == "panels":
        return {name: ds.PanelWeight.from_array(given[name]) for name in (*WEIGHTS, "weight_uk")}
    if form.startswith("q8_0"):
        blocks = {name: LinearPanels.pack(PackedWeight.from_array(given[name]), Format.Q8_0) for name in WEIGHTS}
        as_rows = form == "q8_0_rows"
        w_uk = ds.PanelWeight.from_array(given["weight_uk"])
        return {name: w.rows() if as_rows else w for name, w in blocks.items()} | {"weight_uk": w_uk}
    return {} if form == "plain" else {name: ds.to_nz(given[name]) for name in WEIGHTS}


def best_rate(product: Callable[[Any, Any], Any], dtype: Any, size: int = 2048, rounds: int = 9) -> float | None:
    """Operations a second of square products; None where a small one shows that the large ones would take minutes, as
    `torch._int_mm` does on CPUs for which it has no kernel.
    """

    def seconds(size: int, rounds: int) -> float:
        square = torch.ones(size, size, dtype=torch.int8).to(dtype)
        product(square, square)
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            product(square, square)
            times.append(time.perf_counter() - start)
        return min(times)

    small = size // 8
    if seconds(small, 3) * (size / small) ** 3 > SLOWEST_CALL_SECONDS:
        return None
    return 2.0 * size**3 / seconds(size, rounds)


def product_rates() -> dict[bool, float]:
    """Operations a second of torch's square products, of bfloat16 (False) and of int8 (True), where torch is quick at them."""
    if torch is None:
        return {}
    found = {False: best_rate(torch.mm, torch.bfloat16), True: best_rate(torch._int_mm, torch.int8)}
    for int8, rate in found.items():
        name = f"square products of {'int8' if int8 else 'bfloat16'}"
        print(f"left out: {name}, too slow in torch here" if rate is None else f"{name}: {rate / 1e9:.0f} Gop/s")
    return {int8: rate for int8, rate in found.items() if rate is not None}


def product_floor(report: Report, case: str, seconds: float, ours: float) -> None:
    print(f"  products only {seconds * 1e3:.3g} ms, {seconds / ours:.0%} of ours")
    ratio = seconds / ours
    *_, threads, isa = report.rows[-1]
    report.rows.append((case, "products only", *(seconds,) * 3, *(ratio,) * 3, 1 / ratio, None, None, threads, isa))


def cases(chosen: Any, N: int, int8: bool, report: Report, rates: dict[bool, float]) -> None:
    rng = np.random.default_rng(0)
    plain = weights(rng, N)
    given = int8_weights(plain) if int8 else plain
    forms = {form: in_form(given, form) for form in chosen.forms if not (int8 and form.startswith("q8_0"))}
    nbytes = sum(given[name].nbytes for name in (*WEIGHTS, "weight_uk"))
    projections, absorbed = He * (Hcq + Hckv + Dr) + Hcq * N * (D + Dr), N * D * Hckv
    operator: Callable[..., Any] = ds.mla_prolog_v2 if int8 else ds.mla_prolog
    for T in chosen.tokens:
        p = problem(rng, T, plain)
        expected = truth(p)
        p = int8_problem(p, given) if int8 else p
        calls: dict[str, Call] = {form: lambda w=w, p=p: operator(**p | w, backend="cpu") for form, w in forms.items()}
        if torch is not None:
            calls |= torch_calls(p, int8, bool(chosen.compile))
        for name, call in calls.items():
            made = call()
            verify(name, real_query(made) if int8 else made, expected, 0.05 if int8 else 0.02)
        case = f"{'int8' if int8 else 'bfloat16'} N={N} T={T}"
        times = report.case(case, calls, chosen.rounds, nbytes)
        ours = statistics.median(next(iter(times.values())))
        if {int8, False} <= rates.keys():
            product_floor(report, case, 2.0 * T * (projections / rates[int8] + absorbed / rates[False]), ours)


def main() -> None:
    forms, types = ("panels", "plain", "NZ", "q8_0", "q8_0_rows"), ("bf16", "int8")
    chosen = options(
        __doc__, {"forms": forms, "types": types, "device": KINDS},
        heads=(128,), tokens=(1, 4, 16, 64, 256), types=types, forms=forms[:1],
        compile=1, rounds=15, threads=2, device="cpu", least={"compile": 0},
    )  # fmt: skip
    if chosen.device != "cpu":
        from gpu import prolog as device_prolog

        return device_prolog.run(chosen)
    report = Report("mla_prolog", chosen.threads)
    rates = product_rates()
    for N in chosen.heads:
        for kind in chosen.types:
            cases(chosen, N, kind == "int8", report, rates)
    report.save()


if __name__ == "__main__":
    run_main(main)
