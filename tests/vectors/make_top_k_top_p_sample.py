"""Writes top_k_top_p_sample.npz: calls of the three functions with their inputs and results, read by `read.py`.

Every expected token and survivor is the same in float64 and when p moves by 1e-5 of itself, or else all sums of the
case are exact: an implementation in any precision and order of summation must give the same integers.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import decodestep as ds
from decodestep.ops.top_k_top_p_sample import reference
from decodestep.ops.top_k_top_p_sample.rules import Outputs, Rules

BF16 = ml_dtypes.bfloat16
NAN, INF = float("nan"), float("inf")
KS, PS, MS = [5, 0, 48, 1, 49, 20], [0.9, 0.5, 1.0, 0.75, 0.0, -1.0], [0.1, 0.0, 0.5, -1.0, 0.02, 1.0]


def columns(dtype: Any, shift: int) -> dict[str, np.ndarray]:
    """Six rows that pair every k with another p and m for each shift."""
    return {"top_k": np.array(KS, np.int32), "top_p": np.roll(PS, shift).astype(dtype)}


def robust(op: str, inputs: dict[str, np.ndarray]) -> bool:
    logits, k, p = (inputs[name] for name in ("logits", "top_k", "top_p"))
    m = inputs.get("min_ps", np.zeros(len(k)))
    q = inputs.get("q", np.ones(logits.shape, np.float32))
    rules = Rules(lambda b, ids: q[b, : ids.size], 1e-8, 32, need_logits=True)

    def run(nudge: float, dtype: Any) -> Outputs:
        nudged = np.where((p > 0) & (p < 1), p * nudge, p)
        if op == "top_k_top_p_sample":
            return reference.sample_v1(logits, k, nudged, rules, dtype)
        return reference.sample_v2(logits, k, nudged, m, rules, dtype)

    first, *others = [run(nudge, dtype) for nudge, dtype in product((1, 1 - 1e-5, 1 + 1e-5), (np.float32, np.float64))]
    return all(np.array_equal(first.chosen, o.chosen) and np.array_equal(first.masked, o.masked) for o in others)


def random_cases() -> list[tuple[str, str, dict[str, np.ndarray], dict[str, Any]]]:
    made = []
    for (t, dtype), shift in product(enumerate((np.float16, BF16, np.float32)), range(4)):
        seeds = iter(range(1000 * t + 100 * shift, 10**6))
        for op in ("top_k_top_p_sample", "top_k_top_p_sample_v2"):
            if dtype == np.float32 and op == "top_k_top_p_sample":
                continue
            while True:
                rng = np.random.default_rng(next(seeds))
                inputs = {"logits": (rng.standard_normal((6, 48)) * 2).astype(dtype), **columns(dtype, shift)}
                if shift % 2:
                    inputs["q"] = rng.exponential(size=(6, 48)).astype(np.float32)
                if op.endswith("v2"):
                    inputs["min_ps"] = np.roll(MS, -shift).astype(dtype)
                if robust(op, inputs):
                    break
            arguments = {"is_need_logits": True}
            if op.endswith("v2") and shift == 2:
                arguments |= {"is_need_sample_result": True, "ks_max": 17}
            if shift == 0:  # one seed a row
                inputs |= {"seed": np.arange(6, dtype=np.uint64) << np.uint64(40), "position": np.arange(6)[:, None]}
            made.append((f"{op}-{np.dtype(dtype).name}-{shift}", op, inputs, arguments))
    return made


def exact_cases() -> list[tuple[str, str, dict[str, np.ndarray], dict[str, Any]]]:
    """Dyadic probabilities, ties, and rows of NaN and infinities."""
    v2, rng = "top_k_top_p_sample_v2", np.random.default_rng(0)
    weights = {"logits": (rng.integers(0, 32, (6, 24)) / 128).astype(np.float32)}
    weights["top_k"] = np.array([0, 4, 24, 0, 9, 25], np.int32)
    weights["top_p"] = np.array([0.5, 0.25, 0.75, 1, 0, 2], np.float32)
    race = {"q": (2.0 ** rng.integers(-3, 4, (6, 24))).astype(np.float32), "min_ps": np.full(6, 0.25, np.float32)}
    odd = np.array([[NAN, 1, -INF, 1], [-INF] * 4, [INF, 0, INF, NAN], [NAN] * 4, [2, 2, 2, 2], [-INF, 0, 0, -INF]])
    odd = {"logits": odd.astype(BF16), "top_k": np.array([0, 3, 0, 0, 2, 0], np.int32), "top_p": np.ones(6, BF16)}
    flat = {"logits": np.array([[0, 0, 0, 0], [2, 2, -INF, -INF], [3, 1, 3, 2]], np.float16)}
    raw, listed = {"input_is_logits": False, "is_need_logits": True}, {"is_need_sample_result": True}
    return [
        ("dyadic", v2, weights, raw), ("dyadic-race", v2, weights | race, raw | {"eps": 0.0}),
        ("dyadic-list", v2, weights | {"min_ps": race["min_ps"]}, raw | listed),
        ("odd", v2, odd, {"is_need_logits": True}), ("odd-list", v2, odd, listed),
        ("odd-v1", "top_k_top_p_sample", odd, {"is_need_logits": True}),
        ("apply", "apply_top_k_top_p", flat, {"p": 0.5, "k": 4}), ("apply-p", "apply_top_k_top_p", flat, {"p": 0.75}),
        ("apply-k", "apply_top_k_top_p", flat | {"k": np.array([1, 1, 3], np.int32)}, {}),
    ]  # fmt: skip


def main() -> None:
    file: dict[str, np.ndarray] = {}
    for name, op, inputs, arguments in random_cases() + exact_cases():
        result = getattr(ds, op)(**inputs, **arguments)
        outputs = result._asdict() if isinstance(result, tuple) else {"out": result}
        arrays = {f"in/{key}": value for key, value in inputs.items()}
        arrays |= {f"out/{key}": value for key, value in outputs.items() if value is not None}
        dtypes = {key: "bfloat16" for key, value in arrays.items() if value.dtype == BF16}
        file[f"{name}/call"] = np.array(json.dumps({"op": op, "arguments": arguments, "dtypes": dtypes}))
        file |= {f"{name}/{key}": value.view(np.uint16) if key in dtypes else value for key, value in arrays.items()}
    np.savez_compressed(Path(__file__).with_name("top_k_top_p_sample.npz"), **file)


if __name__ == "__main__":
    main()
