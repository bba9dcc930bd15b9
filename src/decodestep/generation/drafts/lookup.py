"""Drafts by lookup: what followed the last tokens where they occurred before."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from decodestep.generation.drafts.drafter import Drafter, Outlook
from decodestep.sampling.row import Row

_END = -1  # after a text in the index: no token equals it, so no match and no proposal goes across it


class Match(NamedTuple):
    """The last `length` tokens of a sequence occur before this position too, where their continuation begins."""

    position: int
    length: int


class LookupIndex:
    """Where the last tokens of a growing sequence occurred before.

    An entry for each pair of tokens leads to its last occurrence, and from there to those before. A token takes constant time,
    and so does a search: it compares the last tokens with those at the `_CANDIDATES` most recent occurrences of their last
    pair, and at the one that the search before has found.
    """

    _CANDIDATES = 16
    _LONGEST = 32  # a match of more tokens says no more

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._last: dict[tuple[int, int], int] = {}  # pair -> the position after its last occurrence
        self._before: list[int] = []  # for each token, the position after the occurrence before of the pair it ends; 0: none
        self._followed = 0  # the position that the last match has come to; 0: none

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens, ids or _END."""
        self._followed += len(tokens) if self._followed else 0
        for token in tokens:
            pair = (self.tokens[-1] if self.tokens else _END, token)
            self.tokens.append(token)
            self._before.append(self._last.get(pair, 0))
            self._last[pair] = len(self.tokens)

    def search(self) -> Match | None:
        """The longest match of at least two tokens; of equally long ones the most recent."""
        candidates = [self._followed] if 0 < self._followed < len(self.tokens) else []
        at = self._before[-1] if self._before else 0
        while at and len(candidates) <= self._CANDIDATES:
            candidates.append(at)
            at = self._before[at - 1]
        found = max(((self._match(position), position) for position in candidates), default=(0, 0))
        self._followed = found[1] if found[0] > 1 else 0
        return Match(found[1], found[0]) if self._followed else None

    def continuation(self, position: int, limit: int) -> list[int]:
        """Up to `limit` tokens from a position on; at the end of the sequence those from the position on again."""
        period = len(self.tokens) - position
        again = (self.tokens[position + i % period] for i in range(limit))
        return list(takewhile(lambda token: token != _END, again))

    def _match(self, position: int) -> int:
        """How many of the tokens before a position equal the last ones."""
        before, last = (self.tokens[max(0, end - self._LONGEST) : end] for end in (position, len(self.tokens)))
        equal = takewhile(lambda pair: pair[0] == pair[1], zip(reversed(before), reversed(last), strict=False))
        return sum(1 for _ in equal)


class LookupDrafter(Drafter):
    """Proposes what followed the longest earlier occurrence of the last tokens in the prompt, the row's own tokens and a text
    that the answer will probably repeat.

    prediction: the ids of that text; its beginning is the first proposal.
    """

    def __init__(self, prediction: Sequence[int] = ()) -> None:
        self._index = LookupIndex()
        self._index.extend([*prediction, _END] if prediction else [])
        self._read = 0  # how many of the row's tokens are in the index
        self._match: Match | None = None

    def outlook(self, row: Row, most: int) -> Outlook:
        self._update(row)
        if self._match is None:
            return Outlook(0, 0.0)
        # Measured on answers of a small model: a third of the tokens after a match of two, nearly all after one of twenty.
        return Outlook(len(self.propose(row, most)), (self._match.length - 1) / (self._match.length + 1))

    def propose(self, row: Row, limit: int) -> Sequence[int]:
        self._update(row)
        return [] if self._match is None else self._index.continuation(self._match.position, limit)

    def _update(self, row: Row) -> None:
        tokens = row.history.tokens
        if len(tokens) == self._read:
            return
        begins = not self._read and bool(self._index.tokens)
        self._index.extend(tokens[self._read :])
        self._read = len(tokens)
        self._match = Match(0, 16) if begins else self._index.search()
