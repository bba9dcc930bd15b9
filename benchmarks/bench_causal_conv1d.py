"""causal_conv1d at the sizes of Qwen3.5-4B and LFM2-1.2B: one token of many rows, and a prompt; against NumPy and torch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import decodestep as ds
from measuring.harness import Call, Report, options, run_main, torch


class Layer(NamedTuple):
    name: str
    channels: int
    taps: int
    activation: str | None


LAYERS = [Layer("Qwen3.5-4B", 8192, 4, "silu"), Layer("LFM2-1.2B", 2048, 3, None)]
ROWS = [(1, 1), (16, 1), (1, 512)]  # rows, and the tokens of each


def calls(layer: Layer, x: np.ndarray, taps: np.ndarray, state: np.ndarray) -> dict[str, Call]:
    """By NumPy and torch for one row or one token each: what a convolution without rows can do."""
    rows, tokens = len(state), len(x) // len(state)
    silu = layer.activation == "silu"

    def by_numpy() -> np.ndarray:
        u = np.concatenate([state, x.reshape(rows, tokens, -1)], axis=1)
        y = sum(taps[j] * u[:, j : j + tokens] for j in range(layer.taps))
        return (y / (1 + np.exp(-y)) if silu else y).reshape(x.shape)

    held = state.copy()
    made: dict[str, Call] = {
        "ours": lambda: ds.causal_conv1d(x, taps.T, held, activation=layer.activation),
        "NumPy, state not updated": by_numpy,
    }
    if torch is not None:
        u = torch.from_numpy(np.concatenate([state, x.reshape(rows, tokens, -1)], axis=1)).transpose(1, 2).contiguous()
        w = torch.from_numpy(np.ascontiguousarray(taps.T[:, None]))

        def by_torch() -> object:
            y = torch.nn.functional.conv1d(u, w, groups=layer.channels)
            return (torch.nn.functional.silu(y) if silu else y).transpose(1, 2).reshape(x.shape)

        made["torch, state not updated"] = by_torch
    return made


def verify(layer: Layer, x: np.ndarray, taps: np.ndarray, state: np.ndarray, made: dict[str, Call]) -> None:
    wide = [array.astype(np.float64) for array in (x, taps.T, state)]
    expected = ds.causal_conv1d(*wide, activation=layer.activation)
    for name, call in made.items():  # of our own call only the first one begins with this state
        assert np.allclose(np.asarray(call()), expected, rtol=1e-5, atol=1e-5), name


def main() -> None:
    chosen = options(__doc__)
    rng = np.random.default_rng(0)
    report = Report("causal_conv1d", chosen.threads)
    for layer in LAYERS:
        for rows, tokens in ROWS:
            x, taps = (rng.standard_normal((n, layer.channels), np.float32) for n in (rows * tokens, layer.taps))
            state = rng.standard_normal((rows, layer.taps - 1, layer.channels), np.float32)
            made = calls(layer, x, taps, state)
            verify(layer, x, taps, state, made)
            report.case(
                f"{layer.name}: {rows} rows of {tokens}", made, chosen.rounds, 2 * x.nbytes + 2 * state.nbytes + taps.nbytes
            )
    report.save()


if __name__ == "__main__":
    run_main(main)
