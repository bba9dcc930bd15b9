"""selective_state_update at the sizes of Granite-4-H-1B and Nemotron-H-8B: tokens of one and of many rows, and a prompt.

The floor is the time to read and write the states once; a prompt, whose state stays in the caches, is bound by arithmetic: each
case also prints nanoseconds per token and head.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import decodestep as ds
from measuring.harness import Call, Report, options, run_main, torch


class Layer(NamedTuple):
    name: str
    heads: int
    width: int
    groups: int
    state_width: int


LAYERS = [Layer("Granite-4-H-1B", 48, 64, 1, 128), Layer("Nemotron-H-8B", 128, 64, 8, 128)]
ROWS = [(1, 1), (8, 1), (1, 256)]  # rows, and the tokens of each


def arguments(layer: Layer, rows: int, tokens: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    b, c = rng.standard_normal((2, rows * tokens, layer.groups, layer.state_width), np.float32)
    return {
        "x": rng.standard_normal((rows * tokens, layer.heads, layer.width), np.float32),
        "dt": rng.standard_normal((rows * tokens, layer.heads), np.float32),
        "a": -np.exp(rng.standard_normal(layer.heads, np.float32)), "b": b, "c": c,
        "state": rng.standard_normal((rows, layer.heads, layer.state_width, layer.width), np.float32),
        "d": rng.standard_normal(layer.heads, np.float32), "dt_bias": rng.standard_normal(layer.heads, np.float32),
    }  # fmt: skip


def calls(given: dict[str, np.ndarray], rows: int) -> dict[str, Call]:
    held, kept = (given | {"state": given["state"].copy()} for _ in range(2))
    made: dict[str, Call] = {
        "ours": lambda: ds.selective_state_update(**held),
        "NumPy": lambda: ds.selective_state_update(**kept, backend="reference"),
    }
    if torch is not None:
        tensors = {name: torch.from_numpy(array) for name, array in given.items()}
        made["torch, token by token"] = lambda: by_torch(**tensors, rows=rows)
    return made


def by_torch(x: Any, dt: Any, a: Any, b: Any, c: Any, state: Any, d: Any, dt_bias: Any, rows: int) -> Any:
    """The step that transformers takes for one token, with all rows at once."""
    heads = x.shape[1]
    step = torch.nn.functional.softplus(dt + dt_bias)
    b, c = (each.repeat_interleave(heads // each.shape[1], dim=1) for each in (b, c))
    step, x, b, c = (each.unflatten(0, (rows, -1)) for each in (step, x, b, c))
    results = []
    for t in range(x.shape[1]):
        decay = torch.exp(step[:, t] * a)[..., None, None]
        state = state * decay + b[:, t, :, :, None] * (step[:, t, :, None] * x[:, t])[:, :, None, :]
        results.append((c[:, t, :, None] @ state)[:, :, 0] + d[:, None] * x[:, t])
    return torch.stack(results, dim=1).flatten(0, 1)


def main() -> None:
    chosen = options(__doc__)
    report = Report("selective_state_update", chosen.threads)
    for layer in LAYERS:
        for rows, tokens in ROWS:
            given = arguments(layer, rows, tokens)
            made = calls(given, rows)
            expected = ds.selective_state_update(**{name: array.astype(np.float64) for name, array in given.items()})
            for name, call in made.items():  # each begins with this state at its first call
                assert np.allclose(np.asarray(call()), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max()), name
            times = report.case(f"{layer.name}: {rows} rows of {tokens}", made, chosen.rounds, 2 * given["state"].nbytes)
            each = min(times["ours"]) / (rows * tokens * layer.heads)
            print(f"  {each * 1e9:.0f} ns per token and head at best")
    report.save()


if __name__ == "__main__":
    run_main(main)
