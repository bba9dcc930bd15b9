"""swiglu against NumPy and torch."""

from __future__ import annotations

import numpy as np

import decodestep as ds
from measuring.harness import Call, Report, options, run_main, torch

SHAPES = [(1, 1536), (8, 1536), (128, 1536), (1, 18432)]


def calls(gate: np.ndarray, up: np.ndarray) -> dict[str, Call]:
    made: dict[str, Call] = {
        "ours": lambda: ds.swiglu(gate, up),
        "NumPy": lambda: gate / (1 + np.exp(-gate)) * up,
    }
    if torch is not None:
        g, u = torch.from_numpy(gate), torch.from_numpy(up)
        made["ours, torch tensors"] = lambda: ds.swiglu(g, u)
        made["torch"] = lambda: torch.nn.functional.silu(g) * u
    return made


def verify(gate: np.ndarray, up: np.ndarray, made: dict[str, Call]) -> None:
    expected = gate / (1 + np.exp(-gate.astype(np.float64))) * up
    for name, call in made.items():
        assert np.allclose(np.asarray(call()), expected, rtol=4e-6), name


def main() -> None:
    chosen = options(__doc__)
    rng = np.random.default_rng(0)
    report = Report("swiglu", chosen.threads)
    for shape in SHAPES:
        gate, up = rng.standard_normal((2, *shape), np.float32)
        made = calls(gate, up)
        verify(gate, up, made)
        report.case(f"T={shape[0]} F={shape[1]}", made, chosen.rounds, 3 * gate.nbytes)
    report.save()


if __name__ == "__main__":
    run_main(main)
