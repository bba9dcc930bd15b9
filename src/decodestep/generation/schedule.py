"""Scheduling of forward passes: prompts before decoding, or in chunks together with the decoding rows."""

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
    """The contents of a pass.

    rows: the number of rows that draw after it. keys: the total number of keys that they attend to.
    prompts: the number of unfinished prompts. tokens, token_keys: the number of their tokens in this pass, and the total number
    of keys that these attend to.
    """

    rows: int
    keys: int
    prompts: int
    tokens: int = 0
    token_keys: int = 0


class Schedule(ABC):
    """Decides when the prompts of a `Batch` run, and for how many rows and tokens it reserves pages.

    chunked: whether prompts run in the passes of the decoding rows, or before any row draws.
    most_rows: the largest number of rows that have pages at a time.
    """

    chunked: bool
    most_rows: int

    @abstractmethod
    def reserved_tokens(self, remaining: int) -> int:
        """The number of future tokens of a row for which pages are reserved when it is admitted."""

    @abstractmethod
    def room(self, work: Work) -> Room | None:
        """How much of the prompts may run in a pass with this other work; None for nothing in a pass of decoding rows."""

    @contextmanager
    def timed(self, work: Work) -> Iterator[None]:
        """Context manager around a pass, which it may time."""
        yield


class PrefillFirst(Schedule):
    """Maximum throughput without preemption: for a call whose rows are all known."""

    chunked = False
    most_rows = 2**31

    def reserved_tokens(self, remaining: int) -> int:
        return remaining

    def room(self, work: Work) -> Room:
        return Room()


class ChunkedPrefill(Schedule):
    """Chunked prefill: prompts run in chunks, in the passes of the decoding rows, which do not wait for a whole prompt.

    most_rows: as above.
    SLOWER: how much a piece of a prompt may lengthen a pass, as a fraction of the pass without it; with several prompts, this
        much for each, so that not many rows wait for a first token while a few decode.
    PASS_SECONDS: the time limit of a pass of prompts only, and of a pass of several prompts beside rows.
    AHEAD: the number of tokens for which a row has pages when it is admitted; more are taken on demand.

    The time of a pass is modelled as

        alone(rows) + row_key * keys + token * tokens + token_key * token_keys    seconds

    with a cost per attended key: without it, the late pieces of a long prompt would be too long, and pieces beside long rows
    too short. The measured time of each pass corrects the terms in proportion to their shares: the terms of prompts in passes
    with a piece, those of rows in passes without one, of which there is at least one in AGAIN passes, because rows grow. The
    generated tokens do not depend on the schedule.
    """

    SLOWER = 0.5
    PASS_SECONDS = 0.15
    AHEAD = 64
    AGAIN = 16

    chunked = True

    _FIRST = 64, 4  # tokens of the first piece, before any measurement: without rows, and beside rows
    _KEYS, _ROW_KEYS = 800, 300  # of a prompt and of rows: initially, this many keys cost as much as a token

    def __init__(self, most_rows: int) -> None:
        self.most_rows = most_rows
        self._alone: dict[int, float] = {}  # by number of rows, without their attention
        self._token = 0.0  # 0: not measured yet
        self._token_key = self._row_key = 0.0
        self._pieces = 0  # consecutive passes with a piece beside rows

    def reserved_tokens(self, remaining: int) -> int:
        return min(remaining, self.AHEAD)

    def room(self, work: Work) -> Room | None:
        if work.rows and self._pieces + 1 >= self.AGAIN:
            return None
        if not self._token or (work.rows and not self._alone):
            return Room(self._FIRST[work.rows > 0])
        return Room(BLOCK, self._allowed(work), self._token, self._token_key)

    def _allowed(self, work: Work) -> float:
        """The number of seconds by which prompts may lengthen a pass."""
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
        """The time for this number of rows, or the nearest measured one; without rows the weights are read all the same."""
        return self._alone[min(self._alone, key=lambda known: abs(known - rows))] if self._alone else 0.0


def _corrections(rate: float, seconds: float, *parts: float) -> list[float]:
    """The factor for each part that brings their sum closer to `seconds`, larger for larger parts.

    The error is limited to the sum of the parts, because a pass that was interrupted says little.
    """
    whole = math.fsum(parts)
    error = max(-0.5 * whole, min(whole, seconds - whole))
    squares = math.fsum(part * part for part in parts)
    return [1 + rate * error * part / squares for part in parts]
