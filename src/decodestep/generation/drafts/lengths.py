"""How long drafts are: the expected tokens of a pass against its expected time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace

from decodestep.generation.drafts.drafter import Outlook

_GAIN = 1.03  # of tokens per second, below which measured times and estimated chances do not tell a gain from a loss


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
