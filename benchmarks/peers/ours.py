"""Ours: decode_step with prepared steps, and the Sampler, which makes them from parameters and history."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import decodestep as ds
from decodestep import _native
from measuring.sampling import HISTORY, Case, Logits
from measuring.sampling_check import CHECKED_ROWS


class DecodeStep:
    ties = "kept"

    def __init__(self, case: Case) -> None:
        self.steps = case.steps()
        self.greedy = case.params[0].greedy if case.alike else [params.greedy for params in case.params]

    def sample(self, logits: Logits) -> np.ndarray:
        return ds.decode_step(logits.array, self.steps, greedy=self.greedy, seed=1, position=HISTORY).tokens

    def kept(self, logits: Logits, row: int) -> tuple[np.ndarray, np.ndarray]:
        return _probable(self._first(logits, row + 1, "auto").processed[row])

    def check(self, logits: Logits) -> None:
        """Raises AssertionError unless the backend that runs draws the reference's very tokens, and leaves what it leaves."""
        mine, truth = (self._first(logits, CHECKED_ROWS, backend) for backend in ("auto", "reference"))
        np.testing.assert_array_equal(mine.tokens, truth.tokens)
        np.testing.assert_allclose(mine.processed, truth.processed, rtol=2e-6)

    def backend(self, logits: Logits) -> str:
        """Which backend a call takes."""
        with ds.profile() as profile:
            self.sample(logits)
        return next(iter(profile.costs))[1]

    def around_the_core(self, turns: Iterator[Logits], count: int = 300) -> tuple[float, float, float]:
        """Medians: seconds of a call in the native core, those that Python takes around it, and a call without a row.

        The core reads the arguments and makes the arrays of the results, which the last of these tells.
        """
        core, inside, around, bare = _native.decode_step, list[float](), list[float](), list[float]()

        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = core(*arguments)
            inside.append(time.perf_counter() - start)
            return result

        _native.decode_step = timed
        try:
            for _ in range(count):
                logits, start = next(turns), time.perf_counter()
                self.sample(logits)
                around.append(time.perf_counter() - start - inside[-1])
        finally:
            _native.decode_step = core
        for _ in range(count):
            none, start = next(turns).array[:0], time.perf_counter()
            ds.decode_step(none, [], seed=1, position=HISTORY)
            bare.append(time.perf_counter() - start)
        return statistics.median(inside), statistics.median(around), statistics.median(bare)

    def _first(self, logits: Logits, rows: int, backend: str) -> Any:
        return ds.decode_step(
            logits.array[:rows],
            self.steps[:rows],
            greedy=np.broadcast_to(self.greedy, len(self.steps))[:rows],
            seed=1,
            position=HISTORY,
            need_processed=True,
            backend=backend,
        )


class OnThreads(DecodeStep):
    """The same on a number of threads of its own."""

    def __init__(self, case: Case, threads: int) -> None:
        super().__init__(case)
        self.threads = threads

    def sample(self, logits: Logits) -> np.ndarray:
        with ds.use_threads(self.threads):
            return super().sample(logits)


class Logprobs(DecodeStep):
    """The same with the log-probabilities of the token and of the five likeliest, before its steps and after them."""

    def sample(self, logits: Logits) -> np.ndarray:
        wanted = [5] * len(self.steps)
        return ds.decode_step(
            logits.array, self.steps, greedy=self.greedy, seed=1, position=HISTORY, top_logprobs=wanted
        ).tokens


class Sampler:
    ties = "kept"
    LONGEST = 64  # tokens after HISTORY at most, so that the history is about as long every time

    def __init__(self, case: Case) -> None:
        self.case, self.taken = case, self.LONGEST

    def prepare(self) -> None:
        if self.taken == self.LONGEST:
            self.sampler, self.taken = self._new(), 0

    def sample(self, logits: Logits) -> np.ndarray:
        self.taken += 1
        return self.sampler.step(logits.array).tokens

    def kept(self, logits: Logits, row: int) -> tuple[np.ndarray, np.ndarray]:
        return _probable(self._new().processed(logits.array)[row])

    def _new(self) -> ds.Sampler:
        return ds.Sampler(self.case.params, vocab_size=self.case.vocab, prompt_ids=self.case.histories.tolist())


def _probable(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ids = np.flatnonzero(scores > -np.inf)
    weight = np.exp(scores[ids].astype(np.float64) - scores.max())
    return ids, weight / weight.sum()
