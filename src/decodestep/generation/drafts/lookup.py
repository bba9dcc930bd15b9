"""Drafts by lookup: what followed the last tokens where they occurred before."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from decodestep.generation.drafts.drafter import Drafter, Outlook
from decodestep.sampling.row import Row
from decodestep.sampling.token_history import TokenHistory

_END = -1  # after a text in the index: no token equals it, so no match and no proposal goes across it


class Match(NamedTuple):
    """The last `length` tokens of a sequence occur before this position too, where their continuation begins."""

    position: int
    length: int


class PairIndex:
    """Where the pairs of tokens of a prompt, and of a text before it that the answer will probably repeat, occurred before.

    One is enough for all samples of a prompt. It is made by a few calls of NumPy, which let other threads run.

    prediction: the ids of that text. tokens: these, _END, and those of the prompt. predicted: how many come before the prompt.
    before: for each token, the position after the occurrence before of the pair that it ends; 0: none.
    """

    def __init__(self, prompt: TokenHistory, prediction: Sequence[int] = ()) -> None:
        first = [*prediction, _END] if prediction else []
        self.tokens, self.predicted = first + prompt.tokens, len(first)
        pairs = self._pairs(np.concatenate([np.array(first, np.int64), prompt.ids()]))
        order = np.argsort(pairs, kind="stable")
        pairs, ends = pairs[order], (order + 2).astype(np.int32)
        again = pairs[1:] == pairs[:-1]
        self.before = np.zeros(len(self.tokens), np.int32)
        self.before[ends[1:][again] - 1] = ends[:-1][again]
        latest = np.append(~again, True) if len(pairs) else np.zeros(0, bool)
        self._pairs_once, self._last = pairs[latest], ends[latest]

    def begins(self, prompt: TokenHistory, prediction: Sequence[int]) -> bool:
        """Whether it is that of a prompt and a text."""
        return self.tokens[self.predicted :] == prompt.tokens and self.tokens[: self.predicted][:-1] == list(prediction)

    def last(self, pair: tuple[int, int]) -> int:
        """The position after the last occurrence of a pair; 0: none."""
        key = self._pairs(np.array(pair))[0]
        place = np.searchsorted(self._pairs_once, key)
        return int(self._last[place]) if place < len(self._last) and self._pairs_once[place] == key else 0

    @staticmethod
    def _pairs(ids: np.ndarray) -> np.ndarray:
        """A number for each pair of neighbours."""
        return (ids[:-1] << 32) + ids[1:]


class LookupIndex:
    """Where the last tokens of a growing sequence occurred before.

    An entry for each pair of tokens leads to its last occurrence, and from there to those before. A token takes constant time,
    and so does a search: it compares the last tokens with those at the `_CANDIDATES` most recent occurrences of their last
    pair, and at the one that the search before has found.

    text: the index of the tokens that it begins with.
    """

    _CANDIDATES = 16
    _LONGEST = 32  # a match of more tokens says no more

    def __init__(self, text: PairIndex) -> None:
        self._text = text
        self._added: list[int] = []  # the tokens after those of the text
        self._last: dict[tuple[int, int], int] = {}  # pair that one of them ends -> the position after its last occurrence
        self._before: list[int] = []  # for each of them, as in `PairIndex`
        self._followed = 0  # the position that the last match has come to; 0: none

    def __len__(self) -> int:
        return len(self._text.tokens) + len(self._added)

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens."""
        self._followed += len(tokens) if self._followed else 0
        for token in tokens:
            pair = (self._tokens(len(self) - 1, len(self))[0], token) if len(self) else (_END, token)
            self._added.append(token)
            self._before.append(self._last.get(pair) or self._text.last(pair))
            self._last[pair] = len(self)

    def search(self) -> Match | None:
        """The longest match of at least two tokens; of equally long ones the most recent."""
        candidates = [self._followed] if 0 < self._followed < len(self) else []
        at = self._occurrence_before(len(self)) if len(self) else 0
        while at and len(candidates) <= self._CANDIDATES:
            candidates.append(at)
            at = self._occurrence_before(at)
        found = max(((self._match(position), position) for position in candidates), default=(0, 0))
        self._followed = found[1] if found[0] > 1 else 0
        return Match(found[1], found[0]) if self._followed else None

    def continuation(self, position: int, limit: int) -> list[int]:
        """Up to `limit` tokens from a position on; at the end of the sequence those from the position on again."""
        tokens = self._tokens(position, min(position + limit, len(self)))
        again = (tokens * (limit // len(tokens) + 1))[:limit]
        return list(takewhile(lambda token: token != _END, again))

    def _match(self, position: int) -> int:
        """How many of the tokens before a position equal the last ones."""
        before, last = (self._tokens(max(0, end - self._LONGEST), end) for end in (position, len(self)))
        equal = takewhile(lambda pair: pair[0] == pair[1], zip(reversed(before), reversed(last), strict=False))
        return sum(1 for _ in equal)

    def _tokens(self, first: int, end: int) -> list[int]:
        begin = len(self._text.tokens)
        return self._text.tokens[first:end] + self._added[max(0, first - begin) : max(0, end - begin)]

    def _occurrence_before(self, position: int) -> int:
        """The position after the occurrence before of the pair that ends at a position; 0: none."""
        added = position - 1 - len(self._text.tokens)
        return self._before[added] if added >= 0 else int(self._text.before[position - 1])


class LookupDrafter(Drafter):
    """Proposes what followed the longest earlier occurrence of the last tokens in the prompt, the row's own tokens and a text
    that the answer will probably repeat; first, how that text begins.

    text: the index of the row's prompt, with that text.
    """

    def __init__(self, text: PairIndex) -> None:
        self._text, self._index = text, LookupIndex(text)
        self._searched = 0  # how many tokens the row had in the last search
        self._match: Match | None = None

    @property
    def kind(self) -> str:  # type: ignore[override]
        """By where the last match is."""
        predicted = self._match is not None and self._match.position < self._text.predicted
        return "prediction" if predicted else "lookup"

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
        if len(tokens) == self._searched:
            return
        begins = not self._searched and self._text.predicted > 0
        self._index.extend(tokens[len(self._index) - self._text.predicted :])
        self._searched = len(tokens)
        self._match = Match(0, 16) if begins else self._index.search()
