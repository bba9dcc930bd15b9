"""What a batch runs in a pass: the prompts before everything else, or beside the rows that draw."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from decodestep.models.forward import BLOCK


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
    def room(self, decoding: int) -> int:
        """How many tokens of prompts may run in a pass beside so many rows, at least one."""

    @contextmanager
    def timed(self, decoding: int, prompt_tokens: int) -> Iterator[None]:
        """Around a pass of so many rows and tokens of prompts."""
        yield


class PromptsFirst(Schedule):
    """As many tokens a second as can be, and no row that is interrupted: for a call whose rows are all there."""

    beside = False
    most_rows = 2**31

    def set_aside(self, remaining: int) -> int:
        return remaining

    def room(self, decoding: int) -> int:
        return BLOCK


class Beside(Schedule):
    """Prompts in pieces beside the rows that draw: for rows that come and go, none of which may wait for another's prompt.

    most_rows: as above.
    SLOWER: by how much a piece may lengthen a pass, as a share of the pass without it.
    PASS_SECONDS: how long a pass of prompts alone may take, so that a new row soon gets its turn.
    AHEAD: for how many tokens a row has pages when it is admitted; more are taken as they are needed.

    A pass takes as long as its rows' tokens and so much for each token of a prompt. Both are measured as passes run, by a
    moving average; which tokens come out does not depend on them.
    """

    SLOWER = 0.6
    PASS_SECONDS = 0.15
    AHEAD = 64
    _FIRST = 16  # tokens of a piece before anything has been measured

    beside = True

    def __init__(self, most_rows: int) -> None:
        self.most_rows = most_rows
        self._decoding: dict[int, float] = {}  # seconds of a pass of so many rows alone
        self._token: float | None = None  # seconds of a token of a prompt

    def set_aside(self, remaining: int) -> int:
        return min(remaining, self.AHEAD)

    def room(self, decoding: int) -> int:
        alone = self._alone(decoding)
        if self._token is None or alone is None:
            return self._FIRST
        seconds = self.SLOWER * alone if decoding else self.PASS_SECONDS
        return max(1, min(BLOCK, int(seconds / self._token)))

    @contextmanager
    def timed(self, decoding: int, prompt_tokens: int) -> Iterator[None]:
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        if not prompt_tokens:
            self._decoding[decoding] = _moved(self._decoding.get(decoding), seconds)
        elif (alone := self._alone(decoding)) is not None:
            self._token = _moved(self._token, max(seconds - alone, 0.05 * seconds) / prompt_tokens)

    def _alone(self, decoding: int) -> float | None:
        """How long a pass of so many rows takes: as measured, or as for the number nearest to it."""
        if not decoding:
            return 0.0
        if not self._decoding:
            return None
        return self._decoding[min(self._decoding, key=lambda rows: abs(rows - decoding))]


def _moved(before: float | None, now: float) -> float:
    """A moving average that forgets one measurement that is far off."""
    return now if before is None else before + 0.2 * (min(now, 3 * before) - before)
