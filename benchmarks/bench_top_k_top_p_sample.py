"""top_k_top_p_sample_v2 against torch: verified in float64, then timed in turns.

    python benchmarks/bench_top_k_top_p_sample.py [--batch 64] [--vocabulary 131072] [--repeats 7] [--threads 1]

The peers do the same work on the same float32 logits: "torch sort" sorts every row, as one-page samplers do, "torch
topk" takes the leading k first, and "torch unsorted" serves where nothing asks for an order. The floor is one read of
the logits at the bandwidth that a maximum over a large array reaches here.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

import decodestep as ds
from decodestep.ops.top_k_top_p_sample import reference

try:
    import torch
except ImportError:
    torch = None

SCENARIOS = {  # top_k, top_p, min_p
    "k=50 p=0.9": (50, 0.9, None),
    "k=1024 p=0.9 m=0.02": (1024, 0.9, 0.02),
    "p=0.9": (0, 0.9, None),
    "m=0.05": (0, 1.0, 0.05),
    "nothing": (0, 1.0, None),
    "greedy": (0, 0.0, None),
}
Call = Callable[[], np.ndarray]


def peers(logits: np.ndarray, q: np.ndarray, k: int, p: float, m: float | None) -> dict[str, Call]:
    if torch is None:
        return {}
    x, noise = torch.from_numpy(logits), torch.from_numpy(q)
    if p <= 0:
        k, p = 1, 1.0

    def finish(values: torch.Tensor, ids: torch.Tensor | None = None) -> np.ndarray:
        probs = torch.softmax(values, -1)
        keep = torch.ones_like(probs, dtype=torch.bool)
        if p < 1:
            keep &= probs.cumsum(-1) - probs < p
        if m is not None:
            keep &= probs >= m * probs.amax(-1, keepdim=True)
        scores = torch.where(keep, probs, 0) / (noise[:, : probs.shape[1]] + 1e-8)
        best = scores.argmax(-1, keepdim=True)
        return (best if ids is None else ids.gather(1, best)).squeeze(1).numpy()

    def sort() -> np.ndarray:
        values, ids = x.sort(stable=True, dim=-1, descending=True)
        return finish(values[:, : k or None], ids)

    if k:
        return {"torch sort": sort, "torch topk": lambda: finish(*x.topk(k, -1))}
    return {"torch sort": sort} if p < 1 else {"torch unsorted": lambda: finish(x)}


def truth(logits: np.ndarray, q: np.ndarray, k: int, p: float, m: float | None) -> np.ndarray:
    """The token of every row in float64, or -1 where p on either side of its float32 slack gives another one."""
    batch, vocab = logits.shape
    rules = reference.Rules(lambda b, ids: q[b, : ids.size], 1e-8, 32)
    ks, ms = np.full(batch, k, np.int32), np.full(batch, m or 0.0, np.float32).astype(np.float64)
    slack = 3e-8 * vocab + 2e-6 if 0 < p < 1 else 0.0
    tokens = [
        reference.sample_v2(logits, ks, np.full(batch, float(np.float32(p)) + nudge), ms, rules, np.float64).chosen
        for nudge in (-slack, slack)
    ]
    return np.where(tokens[0] == tokens[1], tokens[0], -1)


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
    seconds = interleaved({"read": block.max}, 5)["read"]
    return block.nbytes / min(seconds)


def measure(name: str, logits: np.ndarray, q: np.ndarray, floor: float, repeats: int) -> None:
    k, p, m = SCENARIOS[name]

    def ours(**noise: object) -> np.ndarray:
        return ds.top_k_top_p_sample_v2(logits, k, p, min_ps=m, **noise).logits_select_idx

    expected = truth(logits, q, k, p, m)
    sure = expected >= 0
    np.testing.assert_array_equal(ours(q=q)[sure], expected[sure])
    print(f"\n{name}: verified; {sure.sum()} of {len(logits)} rows have one right token in float32")
    calls = {"given q": lambda: ours(q=q), "seeded": lambda: ours(seed=1, position=2), **peers(logits, q, k, p, m)}
    times = interleaved(calls, repeats)
    base = statistics.median(times["given q"])
    for label, seconds in times.items():
        median = statistics.median(seconds)
        print(
            f"  {label:15}{median * 1e3:9.2f} ms   x{median / base:6.2f} of given q   x{median / floor:6.1f} of one "
            f"read   slowest/fastest {max(seconds) / min(seconds):.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="top_k_top_p_sample_v2: verify, then time against torch")
    for name, default in (("batch", 64), ("vocabulary", 131072), ("repeats", 7), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    if torch is None:
        print("torch is not installed: decodestep is timed alone")
    else:
        torch.set_num_threads(args.threads)
    rng = np.random.default_rng(0)
    shape = (args.batch, args.vocabulary)
    logits = rng.standard_normal(shape, np.float32) * np.float32(4)
    q = rng.standard_exponential(shape, np.float32)
    floor = logits.nbytes / bandwidth()
    print(
        f"{shape[0]} x {shape[1]} float32; decodestep on 1 thread, torch on {args.threads}; "
        f"one read takes {floor * 1e3:.2f} ms at {logits.nbytes / floor / 1e9:.1f} GB/s"
    )
    for name in SCENARIOS:
        measure(name, logits, q, floor, args.repeats)


if __name__ == "__main__":
    main()
