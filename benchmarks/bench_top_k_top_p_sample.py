"""top_k_top_p_sample_v2 against torch, verified in float64 and against the reference.

    python benchmarks/bench_top_k_top_p_sample.py [--batch 64] [--vocabulary 131072] [--rounds 7] [--threads 1] [--device cuda]

The peers do the same work on the same float32 logits: "torch sort" sorts every row, as simple samplers do, "torch topk" takes
the leading k first, and "torch unsorted" is used if no order is needed. The floor is one read of the logits. Both sides run on
--threads threads.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np

import decodestep as ds
from decodestep.ops.top_k_top_p_sample import reference
from decodestep.ops.top_k_top_p_sample.rules import Rules
from gpu.device import KINDS, DeviceReport
from measuring.harness import Call, Report, options, run_main, torch

SCENARIOS = {  # top_k, top_p, min_p
    "k=50 p=0.9": (50, 0.9, None),
    "k=1024 p=0.9 m=0.02": (1024, 0.9, 0.02),
    "p=0.9": (0, 0.9, None),
    "m=0.05": (0, 1.0, 0.05),
    "nothing": (0, 1.0, None),
    "greedy": (0, 0.0, None),
}


def peers(logits: Any, q: Any, k: int, p: float, m: float | None) -> dict[str, Call]:
    """Of NumPy arrays, or of tensors on any device; the calls return the tokens as a tensor."""
    if torch is None:
        return {}
    x, noise = torch.as_tensor(logits), torch.as_tensor(q)
    if p <= 0:
        k, p = 1, 1.0

    def finish(values: torch.Tensor, ids: torch.Tensor | None = None) -> torch.Tensor:
        probs = torch.softmax(values, -1)
        keep = torch.ones_like(probs, dtype=torch.bool)
        if p < 1:
            keep &= probs.cumsum(-1) - probs < p
        if m is not None:
            keep &= probs >= m * probs.amax(-1, keepdim=True)
        scores = torch.where(keep, probs, 0) / (noise[:, : probs.shape[1]] + 1e-8)
        best = scores.argmax(-1, keepdim=True)
        return (best if ids is None else ids.gather(1, best)).squeeze(1)

    def sort() -> torch.Tensor:
        values, ids = x.sort(stable=True, dim=-1, descending=True)
        return finish(values[:, : k or None], ids)

    if k:
        return {"torch sort": sort, "torch topk": lambda: finish(*x.topk(k, -1))}
    return {"torch sort": sort} if p < 1 else {"torch unsorted": lambda: finish(x)}


def truth(logits: np.ndarray, q: np.ndarray, k: int, p: float, m: float | None) -> np.ndarray:
    """The token of every row in float64, or -1 where p on either side of its float32 slack gives another one."""
    batch, vocab = logits.shape
    rules = Rules(lambda b, ids: q[b, : ids.size], 1e-8, 32)
    ks, ms = np.full(batch, k, np.int32), np.full(batch, m or 0.0, np.float32).astype(np.float64)
    slack = 3e-8 * vocab + 2e-6 if 0 < p < 1 else 0.0
    tokens = [
        reference.sample_v2(logits, ks, np.full(batch, float(np.float32(p)) + nudge), ms, rules, np.float64).chosen
        for nudge in (-slack, slack)
    ]
    return np.where(tokens[0] == tokens[1], tokens[0], -1)


def on_device(chosen: Namespace) -> None:
    report = DeviceReport("top_k_top_p_sample", chosen.device)
    rng = np.random.default_rng(0)
    shape = (chosen.batch, chosen.vocabulary)
    host = rng.standard_normal(shape, np.float32) * np.float32(4), rng.standard_exponential(shape, np.float32)
    logits, q = (torch.from_numpy(array).to(report.device) for array in host)
    for name, (k, p, m) in SCENARIOS.items():

        def ours(k: int = k, p: float = p, m: float | None = m, **noise: Any) -> Any:
            return ds.top_k_top_p_sample_v2(logits, k, p, min_ps=m, backend="triton", **noise).logits_select_idx

        calls = {"ours, given q": lambda ours=ours: ours(q=q), "ours, seeded": lambda ours=ours: ours(seed=1, position=2)}
        for call, noise in zip(calls.values(), ({"q": host[1]}, {"seed": 1, "position": 2}), strict=True):
            want = ds.top_k_top_p_sample_v2(host[0], k, p, min_ps=m, **noise).logits_select_idx
            np.testing.assert_array_equal(call().cpu().numpy(), want)
        theirs = {peer: lambda call=call: call for peer, call in peers(logits, q, k, p, m).items()}
        title = f"{name} B={chosen.batch} V={chosen.vocabulary}"
        report.on_device(title, calls, chosen.rounds, host[0].nbytes, report.peers(theirs))
    report.save()


def main() -> None:
    chosen = options(__doc__, {"device": KINDS}, batch=64, vocabulary=131072, rounds=7, device="cpu")
    if chosen.device != "cpu":
        return on_device(chosen)
    report = Report("top_k_top_p_sample", chosen.threads)
    rng = np.random.default_rng(0)
    shape = (chosen.batch, chosen.vocabulary)
    logits = rng.standard_normal(shape, np.float32) * np.float32(4)
    q = rng.standard_exponential(shape, np.float32)
    for name, (k, p, m) in SCENARIOS.items():

        def ours(k: int = k, p: float = p, m: float | None = m, **noise: object) -> np.ndarray:
            return ds.top_k_top_p_sample_v2(logits, k, p, min_ps=m, **noise).logits_select_idx

        expected = truth(logits, q, k, p, m)
        sure = expected >= 0
        np.testing.assert_array_equal(ours(q=q)[sure], expected[sure])
        for noise in ({"q": q}, {"seed": 1, "position": 2}):
            np.testing.assert_array_equal(ours(**noise), ours(**noise, backend="reference"))
        print(f"\n{name}: verified; {sure.sum()} of {len(logits)} rows have one right token in float32")
        calls: dict[str, Call] = {
            "ours, given q": lambda ours=ours: ours(q=q),
            "ours, seeded": lambda ours=ours: ours(seed=1, position=2),
            **peers(logits, q, k, p, m),
        }
        report.case(f"{name} B={chosen.batch} V={chosen.vocabulary}", calls, chosen.rounds, logits.nbytes)
    report.save()


if __name__ == "__main__":
    run_main(main)
