"""What a batch runs in a pass: the prompts before everything else, or beside the rows that draw."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from decodestep.models.forward import BLOCK
from decodestep.models.prefill import Room


class Work(NamedTuple):
    """What a pass runs.

    rows: how many rows draw after it. keys: to how many keys they attend, all together. prompts: how many are not done.
    tokens, token_keys: how many tokens of them the pass runs, and to how many keys these attend, all together.
    """

    rows: int
    keys: int
    prompts: int
    tokens: int = 0
    token_keys: int = 0


class Schedule(ABC):
    """When the prompts of a `Batch` run, and for how many rows and tokens it takes pages.

    beside: whether prompts run in the passes of the rows that draw, or before any row draws.
    most_rows: how many rows may have pages at once.
    """

    beside: bool
    most_rows: int

    @abstractmethod
    def set_aside(self, remaining: int) -> int:
        """For how many of the tokens that a row may still draw pages are set aside when it is admitted."""

    @abstractmethod
    def room(self, work: Work) -> Room | None:
        """What may run of the prompts in a pass that has this to do without them; None for nothing, beside rows."""

    @contextmanager
    def timed(self, work: Work) -> Iterator[None]:
        """Around a pass."""
        yield


class PromptsFirst(Schedule):
    """As many tokens a second as can be, and no row that is interrupted: for a call whose rows are all there."""

    beside = False
    most_rows = 2**31

    def set_aside(self, remaining: int) -> int:
        return remaining

    def room(self, work: Work) -> Room:
        return Room()


class Beside(Schedule):
    """Prompts in pieces beside the rows that draw: for rows that come and go, none of which may wait for another's prompt.

    most_rows: as above.
    SLOWER: by how much the piece of a prompt may lengthen a pass, as a share of the pass without it; several prompts may
        lengthen it as often, so that those who wait for a first token are not many while a few draw.
    PASS_SECONDS: how long a pass of prompts alone may take, and one of several prompts beside rows.
    AHEAD: for how many tokens a row has pages when it is admitted; more are taken as they are needed.

    A pass is taken to last

        alone(rows) + row_key * keys + token * tokens + token_key * token_keys    seconds

    because a key that is attended to is a cost of its own: without it the late pieces of a long prompt would be too long, and
    those beside long rows too short. What passes last corrects the parts, each by its share: those of prompts where there is a
    piece, those of rows where there is none, which is so in each AGAIN-th pass at least, since rows grow. Which tokens come out
    does not depend on it.
    """

    SLOWER = 0.5
    PASS_SECONDS = 0.15
    AHEAD = 64
    AGAIN = 16

    beside = True

    _FIRST = 64, 4  # tokens of a piece before anything is known: without rows, and beside some
    _KEYS, _ROW_KEYS = 800, 300  # of a prompt and of rows: to begin with, so many keys cost what a token does

    def __init__(self, most_rows: int) -> None:
        self.most_rows = most_rows
        self._alone: dict[int, float] = {}  # of so many rows, without their attention
        self._token = 0.0  # 0: nothing is known
        self._token_key = self._row_key = 0.0
        self._pieces = 0  # passes with a piece beside rows, one after the other

    def set_aside(self, remaining: int) -> int:
        return min(remaining, self.AHEAD)

    def room(self, work: Work) -> Room | None:
        if work.rows and self._pieces + 1 >= self.AGAIN:
            return None
        if not self._token or (work.rows and not self._alone):
            return Room(self._FIRST[work.rows > 0])
        return Room(BLOCK, self._allowed(work), self._token, self._token_key)

    def _allowed(self, work: Work) -> float:
        """By how many seconds prompts may lengthen a pass."""
        if not work.rows:
            return self.PASS_SECONDS
        without = self._alone_of(work.rows) + self._row_key * work.keys
        slower = self.SLOWER * without
        return max(slower, min(slower * min(work.prompts, 16), self.PASS_SECONDS - without))

    @contextmanager
    def timed(self, work: Work) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._learn(work, time.perf_counter() - start)

    def _learn(self, work: Work, seconds: float) -> None:
        if not self._token:
            self._token = seconds / (work.tokens or work.rows)
            self._token_key, self._row_key = self._token / self._KEYS, self._token / self._ROW_KEYS
        self._pieces = self._pieces + 1 if work.rows and work.tokens else 0
        attention = self._row_key * work.keys
        prompts = (self._token * work.tokens, self._token_key * work.token_keys)
        if work.rows and work.rows not in self._alone:
            self._alone[work.rows] = max(seconds - attention - sum(prompts), seconds / 8)
        elif not work.tokens:
            alone, row_key = _corrections(0.2, seconds, self._alone[work.rows], attention)
            self._alone[work.rows] *= alone
            self._row_key *= row_key
        else:
            token, token_key = _corrections(0.1, seconds - self._alone_of(work.rows) - attention, *prompts)
            self._token *= token
            self._token_key *= token_key

    def _alone_of(self, rows: int) -> float:
        """For so many rows, or for the number nearest to it: without any, the weights are read all the same."""
        return self._alone[min(self._alone, key=lambda known: abs(known - rows))] if self._alone else 0.0


def _corrections(rate: float, seconds: float, *parts: float) -> list[float]:
    """By what to multiply each part so that all together come nearer to `seconds`: a large part more than a small one.

    A pass that was interrupted says little, so that no error counts for more than the sum of the parts.
    """
    whole = math.fsum(parts)
    error = max(-0.5 * whole, min(whole, seconds - whole))
    squares = math.fsum(part * part for part in parts)
    return [1 + rate * error * part / squares for part in parts]
