"""What a row has seen: its tokens, and indexes over them that grow with each token instead of being made anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np


class History:
    """The tokens of one row, prompt first; `prompt_length` of them were given.

    An index is built where it is first asked for, and kept up from then on. The arrays that it returns may be views of its own
    memory: they hold until the next `append`, and are not to be written to.
    """

    __slots__ = ("_followers", "_tallies", "highest", "prompt_length", "tokens")

    def __init__(self, prompt_ids: Sequence[int] = ()) -> None:
        self.prompt_length = len(prompt_ids)
        self.tokens: list[int] = [int(token) for token in prompt_ids]
        self.highest = max(self.tokens, default=-1)
        self._tallies: dict[int, Tally] = {}  # by how many leading tokens are left out
        self._followers: dict[int, Followers] = {}  # by n

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    def append(self, token: int) -> None:
        self.tokens.append(token)
        if token > self.highest:
            self.highest = token
        for skipped, tally in self._tallies.items():
            if len(self.tokens) > skipped:
                tally.add(token)
        for followers in self._followers.values():
            followers.add(token)

    def tally(self, skipped: int = 0) -> Tally:
        """The distinct tokens behind the first `skipped`, and how often each occurs."""
        if skipped not in self._tallies:
            self._tallies[skipped] = Tally(self.tokens[skipped:])
        return self._tallies[skipped]

    def followers(self, n: int) -> np.ndarray:
        """The distinct tokens that would complete an n-gram which the row already holds."""
        if n == 1:
            return self.tally().ids
        if n not in self._followers:
            self._followers[n] = Followers(n, self.tokens)
        return self._followers[n].ids


class Tally:
    """The distinct tokens of a sequence that grows, in the order in which they came, and how often each occurs."""

    __slots__ = ("_counts", "_ids", "_places")

    def __init__(self, tokens: Sequence[int]) -> None:
        counts = Counter(tokens)
        self._places = {token: place for place, token in enumerate(counts)}
        self._ids = np.empty(2 * len(counts) + 16, np.int64)
        self._counts = np.empty(len(self._ids), np.float64)
        self._ids[: len(counts)] = list(counts)
        self._counts[: len(counts)] = list(counts.values())

    @property
    def ids(self) -> np.ndarray:
        """int64."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> np.ndarray:
        """float64, one for each of `ids`."""
        return self._counts[: len(self._places)]

    def add(self, token: int) -> None:
        place = self._places.get(token)
        if place is not None:
            self._counts[place] += 1
            return
        place = self._places[token] = len(self._places)
        if place == len(self._ids):
            self._ids, self._counts = _doubled(self._ids), _doubled(self._counts)
        self._ids[place], self._counts[place] = token, 1


class Followers:
    """What has followed the last n - 1 tokens of a sequence that grows, n >= 2, wherever they stood in it before."""

    __slots__ = ("_before", "_here", "_last", "_n")

    def __init__(self, n: int, tokens: Iterable[int]) -> None:
        self._before: dict[tuple[int, ...], dict[int, None]] = {}  # by n - 1 tokens, what has followed them
        self._last: tuple[int, ...] = ()
        self._here: dict[int, None] = {}  # of the last tokens: of fewer than n - 1, which are in no index
        self._n = n
        for token in tokens:
            self.add(token)

    @property
    def ids(self) -> np.ndarray:
        """int64, distinct."""
        return as_ids(self._here)

    def add(self, token: int) -> None:
        self._here[token] = None
        whole = len(self._last) == self._n - 1
        self._last = (*(self._last[1:] if whole else self._last), token)
        self._here = self._before.setdefault(self._last, {}) if len(self._last) == self._n - 1 else {}


def _doubled(array: np.ndarray) -> np.ndarray:
    return np.concatenate([array, np.empty_like(array)])


def as_ids(ids: Iterable[int]) -> np.ndarray:
    return np.fromiter(ids, np.int64)
