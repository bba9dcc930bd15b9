"""What a row has seen: its tokens, and indexes over them that grow with each token instead of being made anew."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from decodestep import _native


class Tally(NamedTuple):
    """The distinct tokens of a sequence, int64, in the order in which they came, and how often each occurs, float64."""

    ids: np.ndarray
    counts: np.ndarray


class History(_native.History):
    """The tokens of one row, prompt first; `prompt_length` of them were given. Tokens are integers >= 0.

    It is the core's own, so that a step reads it without a way through Python. `tokens` is a list of the same tokens, to be
    read. An index is built where it is first asked for, and kept up from then on; what is returned of it is a copy.
    """

    def __init__(self, prompt_ids: Iterable[int] = ()) -> None:
        super().__init__([int(token) for token in prompt_ids])

    @property
    def generated(self) -> int:
        return len(self) - self.prompt_length

    def append(self, token: int) -> None:
        _native.append_token(self, int(token))

    def tally(self, skipped: int = 0) -> Tally:
        """The distinct tokens behind the first `skipped`, and how often each occurs."""
        return Tally(*_native.tally(self, skipped))

    def followers(self, n: int) -> np.ndarray:
        """The distinct tokens that would complete an n-gram, n >= 1, which the row already holds; int64."""
        ids: np.ndarray = _native.followers(self, n)
        return ids


def as_ids(ids: Iterable[int]) -> np.ndarray:
    return np.fromiter(ids, np.int64)
