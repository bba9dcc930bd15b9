"""gated_delta_rule at the sizes of Qwen3.5-4B: tokens of one and of many rows, and a prompt; against NumPy and transformers.

The floor is the time to read and write the states once; a prompt, whose state stays in the caches, is bound by arithmetic: each
case also prints nanoseconds per token and head.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import decodestep as ds
from measuring.harness import Call, Report, options, run_main, torch

try:
    from transformers.models.qwen3_next import modeling_qwen3_next as modeling
except ImportError:
    modeling = None

HEADS, KEY_HEADS, WIDTH = 32, 16, 128
ROWS = [(1, 1), (8, 1), (1, 64), (1, 512)]  # rows, and the tokens of each
RULE = {"scale": WIDTH**-0.5, "l2_norm": True}


def arguments(rows: int, tokens: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, rows * tokens, KEY_HEADS, WIDTH), np.float32)
    return {
        "query": query, "key": key, "value": rng.standard_normal((rows * tokens, HEADS, WIDTH), np.float32),
        "state": rng.standard_normal((rows, HEADS, WIDTH, WIDTH), np.float32),
        "decay": -rng.random((rows * tokens, HEADS), np.float32), "beta": rng.random((rows * tokens, HEADS), np.float32),
    }  # fmt: skip


def calls(given: dict[str, Any], rows: int) -> dict[str, Call]:
    held = given | {"state": given["state"].copy()}
    made: dict[str, Call] = {"ours": lambda: ds.gated_delta_rule(**held, **RULE)}
    kept = given | {"state": given["state"].copy()}
    made["NumPy"] = lambda: ds.gated_delta_rule(**kept, **RULE, backend="reference")
    if torch is None or modeling is None:
        print("  transformers: it or torch is not installed")
        return made
    tensors = {name: torch.from_numpy(a.reshape(rows, -1, *a.shape[1:])) for name, a in given.items() if name != "state"}
    tensors["g"] = tensors.pop("decay")
    state = torch.from_numpy(given["state"].copy())
    for form in ("recurrent", "chunk"):
        call = getattr(modeling, f"torch_{form}_gated_delta_rule")

        def theirs(call: Any = call) -> Any:
            out, _ = call(**tensors, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True)
            return out.flatten(0, 1)

        if form == "recurrent" or tensors["g"].shape[1] > 1:
            made[f"transformers, {form}"] = theirs
    return made


def main() -> None:
    chosen = options(__doc__)
    report = Report("gated_delta_rule", chosen.threads)
    for rows, tokens in ROWS:
        given = arguments(rows, tokens)
        made = calls(given, rows)
        wide = {name: array.astype(np.float64) for name, array in given.items()}
        expected = ds.gated_delta_rule(**wide, **RULE)
        for name, call in made.items():  # each begins with this state at its first call
            assert np.allclose(np.asarray(call()), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max()), name
        times = report.case(f"{rows} rows of {tokens}", made, chosen.rounds, 2 * given["state"].nbytes)
        each = min(times["ours"]) / (rows * tokens * HEADS)
        print(f"  {each * 1e9:.0f} ns per token and head at best, {7 * WIDTH * WIDTH / each / 1e9:.0f} GFLOP/s")
    report.save()


if __name__ == "__main__":
    run_main(main)
