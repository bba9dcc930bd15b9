"""The tokens of one row, with indexes that are updated by each token rather than rebuilt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from decodestep import _native


class Tally(NamedTuple):
    """The distinct tokens of a sequence, int64, in order of first occurrence, and how often each occurs, float64."""

    ids: np.ndarray
    counts: np.ndarray


class TokenHistory(_native.History):
    """The tokens of one row, integers >= 0: first the `prompt_length` tokens of the prompt, then the generated ones.

    It belongs to the core, which reads and extends it in a step without calling Python. `tokens` is a Python list of the same
    tokens; do not change it. An index is built when `tally` or `followers` first needs it and extended by every later token;
    both return copies.
    """

    def __init__(self, prompt_ids: Iterable[int] = ()) -> None:
        super().__init__(list(map(int, prompt_ids)))

    def append(self, token: int) -> None:
        _native.append_token(self, int(token))

    def tally(self, skipped: int = 0) -> Tally:
        """The distinct tokens after the first `skipped`, and how often each occurs."""
        return Tally(*_native.tally(self, skipped))

    def followers(self, n: int) -> np.ndarray:
        """The distinct tokens, int64, that would complete an n-gram which occurs in the history already; n >= 1."""
        return _native.followers(self, n)


def as_ids(ids: Iterable[int]) -> np.ndarray:
    return np.fromiter(ids, np.int64)
