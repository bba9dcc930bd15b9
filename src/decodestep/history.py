"""What a row has seen: its tokens, and indexes over them that grow with each token instead of being made anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np


class History:
    """The tokens of one row, prompt first; `prompt_length` of them were given."""

    def __init__(self, prompt_ids: Sequence[int] = ()) -> None:
        self.prompt_length = len(prompt_ids)
        self.tokens: list[int] = [int(token) for token in prompt_ids]
        self._counts: dict[int, Counter[int]] = {}  # by how many leading tokens are left out
        self._followers: dict[int, dict[tuple[int, ...], list[int]]] = {}  # by n: the ends of n-grams, by their beginnings

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    def append(self, token: int) -> None:
        self.tokens.append(token)
        for skipped, counts in self._counts.items():
            if len(self.tokens) > skipped:
                counts[token] += 1
        for n, followers in self._followers.items():
            if len(self.tokens) >= n:
                followers.setdefault(tuple(self.tokens[len(self.tokens) - n : -1]), []).append(token)

    def counts_behind(self, skipped: int) -> Counter[int]:
        """How often each token occurs behind the first `skipped`."""
        if skipped not in self._counts:
            self._counts[skipped] = Counter(self.tokens[skipped:])
        return self._counts[skipped]

    def distinct(self, skipped: int = 0) -> np.ndarray:
        """The distinct tokens behind the first `skipped`."""
        return as_ids(self.counts_behind(skipped))

    def followers(self, n: int) -> np.ndarray:
        """The distinct tokens that would complete an n-gram which the row already holds."""
        if n not in self._followers:
            index: dict[tuple[int, ...], list[int]] = {}
            for end in range(n - 1, len(self.tokens)):
                index.setdefault(tuple(self.tokens[end - n + 1 : end]), []).append(self.tokens[end])
            self._followers[n] = index
        beginning = tuple(self.tokens[len(self.tokens) - n + 1 :])
        return as_ids(set(self._followers[n].get(beginning, ()))) if len(beginning) == n - 1 else as_ids(())

    def ends_with(self, ids: Sequence[int]) -> bool:
        return len(ids) <= len(self.tokens) and self.tokens[len(self.tokens) - len(ids) :] == list(ids)


def as_ids(ids: Iterable[int]) -> np.ndarray:
    return np.fromiter(ids, np.int64)
