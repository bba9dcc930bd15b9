"""The threshold that decided a filter's cut on a row, as a number."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from decodestep.ops.decode_step import reference
from decodestep.ops.decode_step import steps as s
from decodestep.ops.decode_step.reference import Candidates
from decodestep.sampling.distribution import entropy


class Threshold(NamedTuple):
    """value: the bound. quantity: what is compared with it.

    "score": tokens with a lower score are dropped.
    "probability": tokens with a lower probability are dropped; for XTC those with at least it, but the least likely of them.
    "mass": the most likely tokens stay until their probabilities sum to it.
    "surprise": tokens whose |-log p - entropy| is above it are dropped.
    "entropy": the most likely tokens stay while their terms -p log p sum to at most it, in nats.
    """

    quantity: str
    value: float


def find_threshold(step: s.Step, row: Candidates) -> Threshold | None:
    """The threshold of a step on the candidates before it; None if it is not a filter or can never cut anything."""
    rule = _RULES.get(type(step))
    return rule(step, row) if rule and len(row.ids) else None


def _top_k(step: s.TopK, row: Candidates) -> Threshold | None:
    k = max(step.k, step.keep)
    if k >= len(row.ids):
        return None
    return Threshold("score", float(reference.kth_largest(row.scores, k)))


def _top_p(step: s.TopP, row: Candidates) -> Threshold | None:
    return Threshold("mass", float(step.p)) if step.p < 1 else None


def _min_p(step: s.MinP, row: Candidates) -> Threshold:
    return Threshold("probability", step.p * float(reference.probabilities(row).max()))


def _typical(step: s.Typical, row: Candidates) -> Threshold:
    log_p = reference.log_probabilities(row)
    distance = np.abs(-log_p - entropy(log_p))
    kept = reference.candidates(reference.processed(row, int(row.ids[-1]) + 1), (step,), row.position)
    return Threshold("surprise", float(distance[np.isin(row.ids, kept.ids)].max()))


def _epsilon(step: s.Epsilon, row: Candidates) -> Threshold:
    return Threshold("probability", step.epsilon)


def _eta(step: s.Eta, row: Candidates) -> Threshold:
    falling = math.sqrt(step.epsilon) * math.exp(-entropy(reference.log_probabilities(row)))
    return Threshold("probability", min(step.epsilon, falling))


def _top_h(step: s.TopH, row: Candidates) -> Threshold:
    best = np.sort(np.argsort(-row.scores, kind="stable")[: step.top])
    return Threshold("entropy", step.share * entropy(reference.log_probabilities(row.keep(best))))


def _top_n_sigma(step: s.TopNSigma, row: Candidates) -> Threshold:
    scores = row.scores.astype(np.float64)
    top = float(scores.max())
    return Threshold("score", top if math.isinf(top) else top - step.n * float(scores.std()))


def _xtc(step: s.Xtc, row: Candidates) -> Threshold | None:
    acts = reference.xtc_acts(step, row.position) and np.count_nonzero(reference.probabilities(row) >= step.threshold) > 1
    return Threshold("probability", step.threshold) if acts else None


_RULES: dict[type, Callable[[Any, Candidates], Threshold | None]] = {
    s.TopK: _top_k,
    s.TopP: _top_p,
    s.MinP: _min_p,
    s.Typical: _typical,
    s.Epsilon: _epsilon,
    s.Eta: _eta,
    s.TopH: _top_h,
    s.TopNSigma: _top_n_sigma,
    s.Xtc: _xtc,
}
