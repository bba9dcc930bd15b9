"""The typed steps of a row, from its logits to its draw, as plain values.

A step is a patch, which changes the scores of the tokens that it names, or says of each token whether it stays
(`AllowBits`); a filter, which drops tokens (their score becomes -inf); or changes all scores (`Temperature`, `Normalise`). No
step looks at another row. `decode_step` runs them in the order given, and a patch id by id: a token that is named twice is
changed twice. Below, s is the row of scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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


class AllowBits(NamedTuple):
    """s[i] = -inf where bit i is 0: bits[i // 32] >> (i % 32) & 1.

    The packed mask of llguidance, xgrammar and vLLM.

    Attributes:
        bits: int32, (ceil(V / 32),); the bits after the vocabulary count for nothing.
    """

    bits: np.ndarray


class Allow(NamedTuple):
    """s[i] = -inf for all other ids."""

    ids: np.ndarray


class Force(NamedTuple):
    """s[i] = 0 for these ids, -inf for all others."""

    ids: np.ndarray


class Temperature(NamedTuple):
    """s = s / temperature; temperature finite and > 0.

    Where the largest score would overflow float32, the limit relative to it: s = (s - max(s)) / temperature.
    """

    temperature: float


class TopK(NamedTuple):
    """Keep s >= the max(k, keep)-th largest, all of its ties included; k >= 1."""

    k: int
    keep: int = 1


class TopP(NamedTuple):
    """Keep the shortest prefix of mass >= p, largest first, lowest id first among equals; at least `keep` tokens.

    p in [0, 1].
    """

    p: float
    keep: int = 1


class MinP(NamedTuple):
    """Keep probabilities >= p * the largest, p in [0, 1], and the `keep` highest scores."""

    p: float
    keep: int = 1


class Typical(NamedTuple):
    """Keep the tokens whose surprise -log p is nearest to the entropy, until their mass reaches `mass`, ties included.

    The `keep` nearest are always kept; mass in (0, 1).
    """

    mass: float
    keep: int = 1


class Epsilon(NamedTuple):
    """Keep probabilities >= epsilon, and scores >= the keep-th largest; epsilon in (0, 1)."""

    epsilon: float
    keep: int = 1


class Eta(NamedTuple):
    """Keep probabilities >= min(epsilon, sqrt(epsilon) * exp(-entropy)), and scores >= the keep-th largest.

    epsilon in (0, 1).
    """

    epsilon: float
    keep: int = 1


class TopH(NamedTuple):
    """Of the `top` highest scores, keep the first and the longest prefix with at most `share` of the entropy of them all.

    Drop all other tokens. share in (0, 1].
    """

    share: float
    top: int = 100


class TopNSigma(NamedTuple):
    """Keep s >= max(s) - n * the standard deviation of the scores above -inf; n >= 0."""

    n: float


class Xtc(NamedTuple):
    """With the given probability: of the tokens of probability >= threshold, drop all but the least likely.

    Of several least likely ones the highest id stays. "With the given probability" is a coin that the row's position decides:
    uniform(seed, position, `decodestep.random.XTC_COIN`) < probability. The special tokens are not dropped, though they count
    as likely ones; ids that the row does not have count for nothing.
    """

    threshold: float
    probability: float
    seed: int
    special_tokens: tuple[int, ...] = ()


class Normalise(NamedTuple):
    """s = log softmax(s)."""


Step = (
    Penalise
    | Add
    | Lift
    | Ban
    | AllowBits
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

PATCHES = (Penalise, Add, Lift, Ban, AllowBits, Allow, Force)
FILTERS = (Temperature, TopK, TopP, MinP, Typical, Epsilon, Eta, TopH, TopNSigma, Xtc, Normalise)


# Steps that follow from a row's history. `decode_step` does not take these; the core derives them from the indexes of the
# history of a row that it keeps (`rows.new_row`).


class PenaliseSeen(NamedTuple):
    """`Penalise` for the distinct tokens of the history after its first `skipped`; factor finite and > 0."""

    skipped: int
    factor: float


class AddCounted(NamedTuple):
    """`Add` of -(frequency * count + presence) for the same tokens, `count` being how often each occurs there; both finite."""

    skipped: int
    frequency: float
    presence: float


class BanFollowers(NamedTuple):
    """`Ban` of the tokens that would complete an n-gram which occurs in the history already; n >= 1."""

    n: int


class AddEndings(NamedTuple):
    """`Add`, for each token that completes sequences whose other tokens the history ends with, of the sum of their values.

    Attributes:
        sequences: a `sampling.token_history.SequenceEndings`, of sequences that end in the vocabulary.
    """

    sequences: Any


class BanEndings(NamedTuple):
    """`Ban` of the same tokens."""

    sequences: Any


class AddContinuations(NamedTuple):
    """`Add` of amounts[n - shortest] for each token of the history that followed its last n tokens before.

    n is the most of the last tokens, none of them a breaker, that an occurrence of the token follows within the last `range`
    tokens, 0 for all; a token with n < shortest and a breaker are left alone, and n beyond the amounts counts as the last.

    Attributes:
        amounts: float64, for the lengths from shortest, >= 1, to at most `processors.extra.DRY_LONGEST`.
        breakers: int64.
    """

    amounts: np.ndarray
    shortest: int
    breakers: np.ndarray
    range: int


class While(NamedTuple):
    """These steps while first <= length of the history < last; both >= 0."""

    first: int
    last: int
    steps: tuple[Step, ...]


HistoryPart = PenaliseSeen | AddCounted | BanFollowers | AddEndings | BanEndings | AddContinuations | While


def unpack_bits(bits: np.ndarray, vocab: int) -> np.ndarray:
    """The mask of the vocabulary, bools, of the bits of an `AllowBits`."""
    return np.unpackbits(np.ascontiguousarray(bits).view(np.uint8), count=vocab, bitorder="little").view(np.bool_)


def restriction(allowed: np.ndarray) -> tuple[Step, ...]:
    """The step that forbids what is False in a mask of the vocabulary: `Allow` or `Ban`, whichever names fewer; or none."""
    count = int(np.count_nonzero(allowed))
    if 2 * count <= len(allowed):
        return (Allow(np.flatnonzero(allowed)),)
    return (Ban(np.flatnonzero(~allowed)),) if count < len(allowed) else ()
