"""A summary of the tokens that a page omits, so that other settings can be tried on the included ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from decodestep import random
from decodestep.sampling.trace import Trace

# The temperatures for which the summary is exact; a recording adds its own.
TEMPERATURES = tuple(round(0.05 * n, 2) for n in range(1, 41))


def entry_stage(trace: Trace) -> int:
    """The index of the stage that is the input of the first filter or the temperature; the last one if there is none."""
    return next((n for n, step in enumerate(trace.steps) if step.kind in ("scale", "filter")), len(trace.steps))


def summarise_omitted(
    trace: Trace, scores: np.ndarray, included: np.ndarray, temperatures: tuple[float, ...]
) -> dict[str, Any]:
    """Summarises the candidates of `scores` (V,) that are not `included`: their number, their highest score, and for each
    temperature the sum of exp(score / temperature - the maximum over all candidates), and the one that the draw prefers.

    The quotient is that of the temperature step. best: (id, score + noise), without noise for a greedy row; None if all are too
    low for float32.
    """
    mask = scores > -np.inf
    mask[included] = False
    ids = np.flatnonzero(mask)
    rest, top = scores[ids].astype(np.float32), scores.max(initial=-np.inf)
    if not len(ids) or np.isinf(top):  # beside an infinite score all others have probability 0
        nothing = {"masses": [0.0] * len(temperatures), "best": [None] * len(temperatures)}
        return {"count": len(ids), "max": float(str(rest.max())) if len(ids) else None, **nothing}
    noise = np.zeros(len(ids)) if trace.draw.seed is None else _noise(trace, ids)
    masses, best = [], []
    for temperature in temperatures:
        cooled, highest = _apply_temperature(rest, np.float32(top), temperature)
        masses.append(float(np.exp(cooled - highest).sum()))
        race = cooled + noise
        winner = int(np.argmax(race))
        best.append((int(ids[winner]), float(race[winner])) if race[winner] > -np.inf else None)
    return {"count": len(ids), "max": float(str(rest.max())), "masses": masses, "best": best}


def _apply_temperature(scores: np.ndarray, top: np.float32, temperature: float) -> tuple[np.ndarray, float]:
    """scores / temperature, and top / temperature: float32, relative to the latter where that would overflow."""
    with np.errstate(over="ignore"):
        highest = float(top / np.float32(temperature))
        if np.isinf(highest):
            return ((scores.astype(np.float64) - float(top)) / temperature).astype(np.float32).astype(np.float64), 0.0
        return (scores / np.float32(temperature)).astype(np.float64), highest


def _noise(trace: Trace, ids: np.ndarray) -> np.ndarray:
    """The draw's noise for candidates before the filters, most of which do not reach the draw."""
    found: np.ndarray = np.asarray(random.gumbel(trace.draw.seed or 0, trace.draw.position, ids)).astype(np.float64)
    return found
