"""How long drafts are: the expected tokens of a pass against its expected time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace

from decodestep.generation.drafts.drafter import Outlook

_GAIN = 1.03  # of tokens per second, below which measured times and estimated chances do not tell a gain from a loss


class Acceptance:
    """The chance that a drafter's next token is accepted: what it says itself, corrected by what has become of its drafts.

    A correction fades with each draft, and is forgotten over a long pause, so that a row whose text has come to repeat itself
    is found again.
    """

    _WEIGHT = 3.0  # as many tokens must contradict the drafter to count as much as it
    _FADING = 0.85
    _PAUSE = 96  # tokens

    def __init__(self) -> None:
        self._accepted = self._expected = 0.0
        self._drafted_at = 0

    def chance(self, claimed: float, length: int) -> float:
        """claimed: the drafter's own estimate. length: of the row now."""
        if length - self._drafted_at > self._PAUSE:
            self._accepted = self._expected = 0.0
        return min(0.98, claimed * (self._accepted + self._WEIGHT) / (self._expected + self._WEIGHT))

    def learn(self, claimed: float, accepted: int, tried: int, length: int) -> None:
        """accepted: how many of a draft's tokens were right. tried: how many were compared, one more if one was wrong."""
        self._accepted = self._FADING * self._accepted + accepted
        self._expected = self._FADING * self._expected + claimed * tried
        self._drafted_at = length


class Average:
    """An average in which older values count less and less; 0 without any."""

    _WEIGHT = 0.2

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, value: float) -> None:
        self.value = self.value + self._WEIGHT * (value - self.value) if self.value else value


def expected_tokens(outlook: Outlook) -> float:
    """How many tokens of a proposal of all its tokens are accepted on average."""
    return math.fsum(outlook.chance**j for j in range(1, outlook.tokens + 1))


def choose_lengths(outlooks: Sequence[Outlook], rows: int, seconds: Callable[[int], float]) -> list[int]:
    """The number of tokens to draft for each of several rows: those with the most expected tokens per second of the whole pass.

        a pass without drafts has rows tokens in seconds(0)
        the j-th drafted token of a row with chance p is accepted with probability p^j
        of the drafts that take the likeliest tokens of all rows first, the number with the most tokens per second

    outlooks: of rows that may draft. rows: of the pass. seconds: the time of the pass with so many drafted tokens.
    """
    lengths, best_lengths = [0] * len(outlooks), [0] * len(outlooks)
    expected, spent = float(rows), 0.0
    best = _GAIN * rows / seconds(0)
    queue = [(-outlook.chance, i) for i, outlook in enumerate(outlooks) if outlook.tokens]
    heapify(queue)
    drafted = 0
    while queue and (chance := -queue[0][0]) > 0.01:
        i = queue[0][1]
        lengths[i] += 1
        drafted += 1
        expected += chance
        spent += outlooks[i].seconds
        more = lengths[i] < outlooks[i].tokens
        heapreplace(queue, (-chance * outlooks[i].chance if more else 0.0, i))
        if (rate := expected / (seconds(drafted) + spent)) > best:
            best, best_lengths = rate, lengths.copy()
    return best_lengths
