"""rms_norm against NumPy and torch."""

from __future__ import annotations

import numpy as np

import decodestep as ds
from measuring.harness import Call, Report, options, run_main, torch

SHAPES = [(1, 576), (8, 576), (128, 576), (1, 7168), (16, 7168)]


def calls(x: np.ndarray, gamma: np.ndarray) -> dict[str, Call]:
    made: dict[str, Call] = {
        "ours": lambda: ds.rms_norm(x, gamma),
        "NumPy": lambda: x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-5)) * gamma,
    }
    if torch is not None:
        t, g = torch.from_numpy(x), torch.from_numpy(gamma)
        made["ours, torch tensors"] = lambda: ds.rms_norm(t, g)
        made["torch"] = lambda: torch.nn.functional.rms_norm(t, (t.shape[1],), g, 1e-5)
    return made


def verify(x: np.ndarray, gamma: np.ndarray, made: dict[str, Call]) -> None:
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-5) * gamma
    for name, call in made.items():
        assert np.allclose(np.asarray(call()), expected, rtol=2e-6), name


def main() -> None:
    chosen = options(__doc__)
    rng = np.random.default_rng(0)
    report = Report("rms_norm", chosen.threads)
    for shape in SHAPES:
        x, gamma = rng.standard_normal(shape, np.float32), rng.standard_normal(shape[1], np.float32)
        made = calls(x, gamma)
        verify(x, gamma, made)
        report.case(f"T={shape[0]} K={shape[1]}", made, chosen.rounds, 2 * x.nbytes + gamma.nbytes)
    report.save()


if __name__ == "__main__":
    run_main(main)
