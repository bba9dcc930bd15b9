"""The tokens of one row, with indexes that are updated by each token rather than rebuilt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np

from decodestep import _native
from decodestep._base.array_api import quiet


class Tally(NamedTuple):
    """The distinct tokens of a sequence, int64, in order of first occurrence, and how often each occurs, float64."""

    ids: np.ndarray
    counts: np.ndarray


class TokenHistory(_native.History):
    """The tokens of one row, integers >= 0: first the `prompt_length` tokens of the prompt, then the generated ones.

    It belongs to the core, which reads and extends it in a step without calling Python. `tokens` is a Python list of the same
    tokens; do not change it. An index is built when it is first needed and extended by every later token; what the methods
    return are copies.
    """

    def __init__(self, prompt_ids: Iterable[int] = ()) -> None:
        super().__init__(list(map(int, prompt_ids)))

    def append(self, token: int) -> None:
        _native.append_token(self, int(token))

    def truncate(self, length: int) -> None:
        """Takes back all but the first `length` tokens, the prompt at least: the indexes are then as if these had not been
        appended. Takes time in proportion to them; where repetitions are looked up, also to the tokens before, as `append`.

        Raises ValueError, and nothing has changed, for another length, or while a step reads the history.
        """
        _native.truncate_history(self, int(length))

    def ids(self) -> np.ndarray:
        """The tokens, int64."""
        return _native.token_ids(self)

    def tally(self, skipped: int = 0) -> Tally:
        """The distinct tokens after the first `skipped`, and how often each occurs."""
        return Tally(*_native.tally(self, skipped))

    def followers(self, n: int) -> np.ndarray:
        """The distinct tokens, int64, that would complete an n-gram which occurs in the history already; n >= 1."""
        return _native.followers(self, n)

    def endings(self, sequences: SequenceEndings) -> tuple[np.ndarray, np.ndarray]:
        """The distinct tokens, int64, that complete sequences whose other tokens the history ends with; the sums of their
        values, float32."""
        return _native.endings(self, sequences)

    def continuations(self, shortest: int, longest: int, breakers: np.ndarray, range: int) -> tuple[np.ndarray, np.ndarray]:
        """The distinct tokens, int64, that would continue a repetition of at least `shortest` tokens, and the length of the
        longest that each continues, at most `longest`, uint8. breakers, range: as of the step `AddContinuations`."""
        return _native.continuations(self, shortest, longest, breakers, range)


class SequenceEndings(_native.SequenceEndings):
    """Sequences of tokens with a value each, indexed by the tokens before their last: a look-up takes time in proportion to
    the tokens of the history that it reads, not to the sequences.

    values: {ids: value}, ids >= 0. A sequence of no token ends in none and is left out. The values of several sequences that
    a token completes add up in float32, that of the token alone first and then by length, as the lengths first occur.
    """

    def __init__(self, values: Mapping[tuple[int, ...], float]) -> None:
        sequences = [ids for ids in values if ids]
        with quiet():  # a value beyond float32 is infinite
            numbers = np.fromiter((values[ids] for ids in sequences), np.float32, len(sequences))
        super().__init__(as_ids(chain.from_iterable(sequences)), as_ids(map(len, sequences)), numbers)


def as_ids(ids: Iterable[int]) -> np.ndarray:
    return np.fromiter(ids, np.int64)
