"""The time of forward passes, learnt from those that have run."""

from __future__ import annotations

import math
from bisect import bisect_left
from copy import deepcopy
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from decodestep.models import Model


class Work(NamedTuple):
    """The contents of a pass.

    rows: the number of rows that draw after it. keys: the total number of keys that they attend to. drafted: how many more
    tokens they run, which they may draw.
    prompts: the number of unfinished prompts. tokens, token_keys: the number of their tokens in this pass, and the total number
    of keys that these attend to.
    """

    rows: int
    keys: int
    prompts: int
    tokens: int = 0
    token_keys: int = 0
    drafted: int = 0


class ForwardCost:
    """A model of the time of a pass, in seconds:

        decode_base[rows + drafted] + per_decode_key * keys + per_prefill_token * tokens + per_prefill_key * token_keys

    Without a cost for each attended key, the late pieces of a long prompt would be too long, and pieces beside long rows too
    short. A term is 0 until a forward pass has been measured.
    """

    _KEYS_OF_PREFILL_TOKEN, _KEYS_OF_DECODE_TOKEN = 800, 300  # initially, this many keys cost as much as a token
    _MOST_OF_ONE = 0.25  # of a pass, what one more token takes before it has been measured
    _LEAST_PREFILL = 8  # tokens: a pass of fewer says little of what one more takes
    _MEMORY = 256  # passes, after which a number of tokens that did not occur is as unknown as it was

    def __init__(self) -> None:
        self.decode_base: dict[int, float] = {}  # by number of decoding tokens, without their attention
        self.per_decode_key = self.per_prefill_token = self.per_prefill_key = 0.0
        self._passes = 0
        self._measured_at: dict[int, int] = {}  # of each decode_base, the last pass

    def knows(self, work: Work) -> bool:
        """Whether passes have been measured, and if this one has rows, one of them with rows."""
        return self.per_prefill_token > 0 and (not work.rows or bool(self.decode_base))

    def decoding(self, work: Work) -> float:
        """The time of the forward pass without its prompts."""
        return self._base(work.rows + work.drafted) + self.per_decode_key * work.keys

    def learn(self, work: Work, seconds: float) -> None:
        """Corrects the terms of prompts by the measured time of a pass with a piece of one, and those of rows by the time of a
        pass without."""
        if not self.per_prefill_token:
            self.per_prefill_token = seconds / max(work.tokens or work.rows, self._LEAST_PREFILL)
            self.per_prefill_key = self.per_prefill_token / self._KEYS_OF_PREFILL_TOKEN
            self.per_decode_key = self.per_prefill_token / self._KEYS_OF_DECODE_TOKEN
        attention = self.per_decode_key * work.keys
        prefill = (self.per_prefill_token * work.tokens, self.per_prefill_key * work.token_keys)
        decoding = work.rows + work.drafted
        if work.rows and decoding not in self.decode_base:
            alone, suggested = max(seconds - attention - sum(prefill), seconds / 8), self._base(decoding)
            # Near what others suggest: after a pass that was interrupted, this number would not be tried again.
            self.decode_base[decoding] = (min(alone, 1.5 * suggested) + suggested) / 2 if self.decode_base else alone
        elif not work.tokens:
            base, key = _corrections(0.2, seconds, self.decode_base[decoding], attention)
            self.decode_base[decoding] *= base
            self.per_decode_key *= key
        else:
            token, key = _corrections(0.1, seconds - self._base(decoding) - attention, *prefill)
            self.per_prefill_token *= token
            self.per_prefill_key *= key
        self._passes += 1
        if work.rows:
            self._measured_at[decoding] = self._passes
            for count in [n for n, at in self._measured_at.items() if at < self._passes - self._MEMORY]:
                del self.decode_base[count], self._measured_at[count]

    def _base(self, decoding: int) -> float:
        """The time for this number of decoding tokens, on a line between the nearest that have been measured; below them that
        of the least, because the weights are read as well. Above them a token takes as much more as one of a prompt, but not
        more than a fraction of a pass: who takes it to be dear never finds out."""
        counts = sorted(self.decode_base)
        if not counts:
            return 0.0
        above = bisect_left(counts, decoding)
        if above == 0:
            return self.decode_base[counts[0]]
        low = counts[above - 1]
        if above == len(counts):
            most = self._MOST_OF_ONE * self.decode_base[counts[0]]
            return self.decode_base[low] + (decoding - low) * min(self.per_prefill_token, most)
        high = counts[above]
        share = (decoding - low) / (high - low)
        return (1 - share) * self.decode_base[low] + share * self.decode_base[high]


def recent_cost(model: Model) -> ForwardCost:
    """What the last batch of a model has learnt, for the next one to begin with."""
    return deepcopy(_RECENT.get(model)) or ForwardCost()


def keep_cost(model: Model, cost: ForwardCost) -> None:
    """Keeps what a batch has learnt."""
    _RECENT[model] = deepcopy(cost)


_RECENT: WeakKeyDictionary[Model, ForwardCost] = WeakKeyDictionary()


def _corrections(rate: float, seconds: float, *parts: float) -> list[float]:
    """The factor for each part that brings their sum closer to `seconds`, larger for larger parts.

    The error is limited to the sum of the parts, because a forward pass that was interrupted says little.
    """
    whole = math.fsum(parts)
    error = max(-0.5 * whole, min(whole, seconds - whole))
    squares = math.fsum(part * part for part in parts)
    return [1 + rate * error * part / squares for part in parts]
