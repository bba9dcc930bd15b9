"""What scores stand for: probabilities, their entropy, and the likeliest tokens. In float64, as the steps compute them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from decodestep.ops.decode_step import reference


def probabilities(scores: np.ndarray) -> np.ndarray:
    """softmax over (V,); 0 for tokens at -inf."""
    row = reference.candidates(scores, (), 0)
    found = np.zeros(len(scores))
    if len(row.ids):
        found[row.ids] = reference.probabilities(row)
    return found


def log_probability(scores: np.ndarray, token: int) -> float:
    row = reference.candidates(scores, (), 0)
    at = np.flatnonzero(row.ids == token)
    return float(reference.log_probabilities(row)[at[0]]) if len(at) else -math.inf


def entropy(log_p: np.ndarray) -> float:
    """Of log-probabilities, in nats."""
    share = np.exp(log_p)
    return float(-(share * np.where(share > 0, log_p, 0.0)).sum()) + 0.0


def likeliest(stages: Sequence[np.ndarray], count: int) -> np.ndarray:
    """The `count` highest candidates of each array, lowest id first among equals; sorted by the first array."""
    found = {int(i) for scores in stages for i in np.argsort(-scores, kind="stable")[:count] if scores[i] > -np.inf}
    return np.array(sorted(found, key=lambda i: (-stages[0][i], i)), np.int64)
