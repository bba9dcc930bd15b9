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
    def room(self, decoding: int, prompts: int) -> int:
        """How many tokens of so many prompts may run in a pass beside so many rows, at least one."""

    @contextmanager
    def timed(self, decoding: int, prompts: int, tokens: int) -> Iterator[None]:
        """Around a pass of so many rows, and so many tokens of the prompts that there are."""
        yield


class PromptsFirst(Schedule):
    """As many tokens a second as can be, and no row that is interrupted: for a call whose rows are all there."""

    beside = False
    most_rows = 2**31

    def set_aside(self, remaining: int) -> int:
        return remaining

    def room(self, decoding: int, prompts: int) -> int:
        return BLOCK


class Beside(Schedule):
    """Prompts in pieces beside the rows that draw: for rows that come and go, none of which may wait for another's prompt.

    most_rows: as above.
    SLOWER: by how much the piece of a prompt may lengthen a pass, as a share of the pass without it; several prompts may
        lengthen it as often, so that those who wait for a first token are not many while a few draw.
    PASS_SECONDS: how long a pass of prompts alone may take, and one of several prompts beside rows.
    AHEAD: for how many tokens a row has pages when it is admitted; more are taken as they are needed.

    The time of a pass of so many rows alone is a moving average of such passes. A piece grows while its passes take less than
    they may, and shrinks where they take longer. Which tokens come out does not depend on it.
    """

    SLOWER = 0.4
    PASS_SECONDS = 0.15
    AHEAD = 64

    beside = True

    def __init__(self, most_rows: int) -> None:
        self.most_rows = most_rows
        self._alone: dict[int, float] = {}  # seconds of a pass of so many rows alone
        self._pieces: dict[int, float] = {0: 64.0, 1: 4.0}  # tokens of a piece beside so many rows

    def set_aside(self, remaining: int) -> int:
        return min(remaining, self.AHEAD)

    def room(self, decoding: int, prompts: int) -> int:
        return max(1, min(BLOCK, int(self._piece(decoding) * self._shares(decoding, prompts))))

    @contextmanager
    def timed(self, decoding: int, prompts: int, tokens: int) -> Iterator[None]:
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        if not tokens:
            before = self._alone.get(decoding, seconds)
            self._alone[decoding] = before + 0.2 * (min(seconds, 3 * before) - before)
        elif self._alone or not decoding:
            allowed = self.PASS_SECONDS
            if decoding:
                alone = _nearest(self._alone, decoding)
                shares = self._shares(decoding, prompts)
                allowed = max(min(allowed, (1 + self.SLOWER * shares) * alone), (1 + self.SLOWER) * alone)
            if seconds > allowed or tokens >= self.room(decoding, prompts):
                change = min(1.1, max(0.7, allowed / seconds))
                self._pieces[decoding] = min(float(BLOCK), max(1.0, self._piece(decoding) * change))

    def _piece(self, decoding: int) -> float:
        return _nearest(self._pieces, decoding)

    def _shares(self, decoding: int, prompts: int) -> int:
        return min(prompts, 16) if decoding else 1


def _nearest(known: dict[int, float], rows: int) -> float:
    """The value for so many rows, or for the number nearest to it; those without any row are a case of their own."""
    if rows in known:
        return known[rows]
    return known[min((other for other in known if other), key=lambda other: abs(other - rows))]
