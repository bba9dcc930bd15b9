"""Scheduling of forward passes: prompts before decoding, or in chunks together with the decoding rows."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from decodestep.decoding.forward import BLOCK
from decodestep.decoding.prefill import Budget
from decodestep.generation.forward_cost import ForwardCost, Work


class Scheduler(ABC):
    """Decides when the prompts of a `Batch` run, and for how many rows and tokens it reserves pages.

    chunked: whether prompts run in the forward passes of the decoding rows, or before any row draws.
    max_rows: the largest number of rows that have pages at a time.
    cost: of passes, which `measure` corrects.
    """

    chunked: bool
    max_rows: int

    def __init__(self, cost: ForwardCost | None = None) -> None:
        self.cost = cost or ForwardCost()

    @abstractmethod
    def reserved_tokens(self, remaining: int) -> int:
        """The number of future tokens of a row for which pages are reserved when it is admitted."""

    @abstractmethod
    def prompt_budget(self, work: Work) -> Budget | None:
        """How much of the prompts may run in a pass with this other work; None for nothing in a pass of decoding rows."""

    @contextmanager
    def measure(self, work: Work) -> Iterator[None]:
        """Context manager around a pass, which it times."""
        start = time.perf_counter()
        yield
        self.cost.learn(work, time.perf_counter() - start)


class PrefillFirst(Scheduler):
    """Maximum throughput without preemption: for a call whose rows are all known."""

    chunked = False
    max_rows = BLOCK  # which share one reading of the weights: more would only need more memory, for the logits of each

    def reserved_tokens(self, remaining: int) -> int:
        return remaining

    def prompt_budget(self, work: Work) -> Budget:
        return Budget()


class ChunkedPrefill(Scheduler):
    """Chunked prefill: prompts run in chunks, in the forward passes of the decoding rows, which do not wait for a whole prompt.

    max_rows: as above.
    MAX_SLOWDOWN: how much a piece of a prompt may lengthen a pass, as a fraction of the pass without it; with several prompts,
        this much for each, so that not many rows wait for a first token while a few decode.
    MAX_FORWARD_SECONDS: the time limit of a forward pass of prompts only, and of a forward pass of several prompts beside rows.
    RESERVED_TOKENS: the number of tokens for which a row has pages when it is admitted; more are taken on demand.
    MEASURE_EVERY: while there are rows, one of this many passes runs no prompt, so that the growing cost of the rows is known.

    The sizes of the pieces follow from the measured times of passes (see `ForwardCost`). The generated tokens do not depend on
    them.
    """

    MAX_SLOWDOWN = 0.5
    MAX_FORWARD_SECONDS = 0.15
    RESERVED_TOKENS = 64
    MEASURE_EVERY = 16

    chunked = True

    # Tokens of a piece before any measurement.
    _FIRST_ALONE = 64
    _FIRST_BESIDE_ROWS = 4

    def __init__(self, max_rows: int, cost: ForwardCost | None = None) -> None:
        super().__init__(cost)
        self.max_rows = max_rows
        self._mixed = 0  # consecutive forward passes with a piece beside rows

    def reserved_tokens(self, remaining: int) -> int:
        return min(remaining, self.RESERVED_TOKENS)

    def prompt_budget(self, work: Work) -> Budget | None:
        if work.rows and self._mixed + 1 >= self.MEASURE_EVERY:
            return None
        if not self.cost.knows(work):
            return Budget(self._FIRST_BESIDE_ROWS if work.rows else self._FIRST_ALONE)
        return Budget(BLOCK, self._seconds_for_prompts(work), self.cost.per_prefill_token, self.cost.per_prefill_key)

    def _seconds_for_prompts(self, work: Work) -> float:
        """The number of seconds by which prompts may lengthen a pass."""
        if not work.rows:
            return self.MAX_FORWARD_SECONDS
        without = self.cost.decoding(work)
        one = self.MAX_SLOWDOWN * without
        return max(one, min(one * min(work.prompts, 16), self.MAX_FORWARD_SECONDS - without))

    @contextmanager
    def measure(self, work: Work) -> Iterator[None]:
        with super().measure(work):
            yield
        self._mixed = self._mixed + 1 if work.rows and work.tokens else 0
