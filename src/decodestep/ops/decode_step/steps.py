"""The typed steps of a row: what stands between its logits and its draw, as plain values.

A step is either a patch, which changes the scores of a few tokens, or a filter, which drops tokens (-inf). None of them looks
at another row. `decode_step` runs them in the order given, a patch id after id: one that is named twice is changed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Penalise(NamedTuple):
    """s[i] = s[i] * factor where s[i] < 0, else s[i] / factor, for each of these ids; factor finite and > 0."""

    ids: np.ndarray
    factor: float


class Add(NamedTuple):
    """s[i] = s[i] + value, for each of these ids."""

    ids: np.ndarray
    values: np.ndarray


class Lift(NamedTuple):
    """s[i] = s[i] + |s[i]| * factor where s[i] is finite, for each of these ids."""

    ids: np.ndarray
    factor: float


class Ban(NamedTuple):
    """s[i] = -inf for these ids."""

    ids: np.ndarray


class Allow(NamedTuple):
    """s[i] = -inf for all other ids."""

    ids: np.ndarray


class Force(NamedTuple):
    """s[i] = 0 for these ids, -inf for all others."""

    ids: np.ndarray


class Temperature(NamedTuple):
    """s = s / temperature, which is finite and > 0; where the largest would leave the type, the limit relative to it."""

    temperature: float


class TopK(NamedTuple):
    """Keep s >= the max(k, keep)-th largest, its ties included; k >= 1."""

    k: int
    keep: int = 1


class TopP(NamedTuple):
    """Keep the shortest prefix, largest first, lowest id first among equals, of mass >= p in [0, 1]; at least `keep` tokens."""

    p: float
    keep: int = 1


class MinP(NamedTuple):
    """Keep probabilities >= p * the largest, p in [0, 1], and the `keep` highest scores."""

    p: float
    keep: int = 1


class Typical(NamedTuple):
    """Keep the tokens whose surprise is nearest to the entropy until their mass reaches `mass` in (0, 1), ties included."""

    mass: float
    keep: int = 1


class Epsilon(NamedTuple):
    """Keep probabilities >= epsilon in (0, 1), and scores >= the keep-th largest."""

    epsilon: float
    keep: int = 1


class Eta(NamedTuple):
    """Keep probabilities >= min(epsilon, sqrt(epsilon) * exp(-entropy)), and scores >= the keep-th largest."""

    epsilon: float
    keep: int = 1


class TopH(NamedTuple):
    """Of the `top` highest, keep the first and the prefix whose entropy stays within `share` in (0, 1] of their entropy."""

    share: float
    top: int = 100


class TopNSigma(NamedTuple):
    """Keep s >= max(s) - n * the standard deviation of the scores above -inf; n >= 0."""

    n: float


class Xtc(NamedTuple):
    """Where the row's coin falls below `probability`: of the tokens of probability >= threshold drop all but the least likely,
    the highest id among equals, where the last of them stands in a stable order.

    The coin is uniform(seed, position, `decodestep.random.XTC_COIN`), the position being the row's.
    """

    threshold: float
    probability: float
    seed: int


class Normalise(NamedTuple):
    """s = log softmax(s)."""


Step = (
    Penalise
    | Add
    | Lift
    | Ban
    | Allow
    | Force
    | Temperature
    | TopK
    | TopP
    | MinP
    | Typical
    | Epsilon
    | Eta
    | TopH
    | TopNSigma
    | Xtc
    | Normalise
)
Steps = Sequence[Step]

PATCHES = (Penalise, Add, Lift, Ban, Allow, Force)


# What follows from a row's history: the core looks it up in the history's own indexes, where `ds.Sampler` steps a row.


class PenaliseSeen(NamedTuple):
    """Penalise the distinct tokens behind the first `skipped` of the history; factor finite and > 0."""

    skipped: int
    factor: float


class AddCounted(NamedTuple):
    """Add -(frequency * count + presence) to the same tokens, each occurring `count` times there; both finite."""

    skipped: int
    frequency: float
    presence: float


class BanFollowers(NamedTuple):
    """Ban the tokens that would complete an n-gram which the history already holds; n >= 1."""

    n: int


class While(NamedTuple):
    """These steps while first <= length of the history < last; both >= 0."""

    first: int
    last: int
    steps: tuple[Step, ...]


Following = PenaliseSeen | AddCounted | BanFollowers | While
