"""The time of forward passes, learnt from those that have run."""

from __future__ import annotations

import math
from typing import NamedTuple


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


class ForwardCost:
    """A model of the time of a pass, in seconds:

        decode_base[rows] + per_decode_key * keys + per_prefill_token * tokens + per_prefill_key * token_keys

    Without a cost for each attended key, the late pieces of a long prompt would be too long, and pieces beside long rows too
    short. A term is 0 until a forward pass has been measured.
    """

    _KEYS_OF_PREFILL_TOKEN, _KEYS_OF_DECODE_TOKEN = 800, 300  # initially, this many keys cost as much as a token

    def __init__(self) -> None:
        self.decode_base: dict[int, float] = {}  # by number of rows, without their attention
        self.per_decode_key = self.per_prefill_token = self.per_prefill_key = 0.0

    def knows(self, work: Work) -> bool:
        """Whether passes have been measured, and if this one has rows, one of them with rows."""
        return self.per_prefill_token > 0 and (not work.rows or bool(self.decode_base))

    def decoding(self, work: Work) -> float:
        """The time of the forward pass without its prompts."""
        return self._base(work.rows) + self.per_decode_key * work.keys

    def learn(self, work: Work, seconds: float) -> None:
        """Corrects the terms of prompts by the measured time of a pass with a piece of one, and those of rows by the time of a
        pass without."""
        if not self.per_prefill_token:
            self.per_prefill_token = seconds / (work.tokens or work.rows)
            self.per_prefill_key = self.per_prefill_token / self._KEYS_OF_PREFILL_TOKEN
            self.per_decode_key = self.per_prefill_token / self._KEYS_OF_DECODE_TOKEN
        attention = self.per_decode_key * work.keys
        prefill = (self.per_prefill_token * work.tokens, self.per_prefill_key * work.token_keys)
        if work.rows and work.rows not in self.decode_base:
            self.decode_base[work.rows] = max(seconds - attention - sum(prefill), seconds / 8)
        elif not work.tokens:
            base, key = _corrections(0.2, seconds, self.decode_base[work.rows], attention)
            self.decode_base[work.rows] *= base
            self.per_decode_key *= key
        else:
            token, key = _corrections(0.1, seconds - self._base(work.rows) - attention, *prefill)
            self.per_prefill_token *= token
            self.per_prefill_key *= key

    def _base(self, rows: int) -> float:
        """The time for this number of rows, or the nearest measured one; without rows the weights are read as well."""
        return self.decode_base[min(self.decode_base, key=lambda known: abs(known - rows))] if self.decode_base else 0.0


def _corrections(rate: float, seconds: float, *parts: float) -> list[float]:
    """The factor for each part that brings their sum closer to `seconds`, larger for larger parts.

    The error is limited to the sum of the parts, because a forward pass that was interrupted says little.
    """
    whole = math.fsum(parts)
    error = max(-0.5 * whole, min(whole, seconds - whole))
    squares = math.fsum(part * part for part in parts)
    return [1 + rate * error * part / squares for part in parts]
