"""Continuous batching: rows that a model runs together, one forward pass at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import starmap
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from decodestep.decoding.prefill import Budget, Prefill, count_keys
from decodestep.decoding.sequence import CachedSequence, admit, count_pages
from decodestep.errors import CacheFullError
from decodestep.generation.forward_cost import Work
from decodestep.generation.prompt_logprobs import PromptScoring
from decodestep.generation.scheduler import PrefillFirst, Scheduler
from decodestep.sampling.row import MAX_JUMP, Row
from decodestep.sampling.sampler import Sampler

if TYPE_CHECKING:
    from decodestep.models import Model


class _Forward(NamedTuple):
    """The input of a forward pass.

    decoding: the keys of the rows that draw after it, whose pieces come first. wanted: as for `Model.forward`. scores: whether
    the last piece is of a prompt that is scored, which needs the logits of all its tokens.
    """

    decoding: list[int]
    pieces: Sequence[tuple[CachedSequence, Sequence[int]]]
    wanted: list[bool]
    work: Work
    scores: bool = False


class Batch:
    """Rows that a model runs until each has ended; rows may join and leave between two forward passes.

        while there are rows that have not ended:
            admit waiting rows, in order, while the cache has the pages that the scheduler reserves for a row
            run a block of the unprocessed prompts, as large as the scheduler allows
            run the last token of every row that draws, in the same pass or, with prompts first, once all prompts are done
            draw the next token of each of them

    A prompt that is scored (`params.prompt_logprobs`) takes the place of a block of the others, in every second such pass.

    scheduler: see `Scheduler`.

    If the cache has no page for a running row, the row that was admitted last is preempted: it releases its pages and is
    admitted again when there is room. Its prompt and its tokens so far are then run again, unless the cache still has them. A
    row's tokens do not depend on any of this.
    The pages of the cache are released by `close`, or when the last row ends.
    """

    def __init__(self, model: Model, scheduler: Scheduler | None = None) -> None:
        self._model = model
        self._sampler = Sampler((), vocab_size=model.config.vocab_size)  # of the rows that are being sampled
        self._scheduler = scheduler or PrefillFirst()
        self._rows: dict[int, Row] = {}  # those that have not been taken out, by the key that `add` gave
        self._added = 0
        self._waiting: deque[int] = deque()  # keys, as in all that follows
        self._sequences: dict[int, CachedSequence] = {}  # of the rows that have been admitted, in that order
        self._prefill: Prefill[int] = Prefill(model, fair=self._scheduler.chunked)
        self._scoring = PromptScoring()  # the prompts that are reported on
        self._scored = False  # whether the last pass with a prompt was with one of them
        self._sampled: list[int] = []  # the rows of the sampler
        self._logits: dict[int, np.ndarray] = {}  # of those of them whose last token has been run

    def add(self, row: Row) -> int:
        """Adds a row that has not ended and returns its key in this batch.

        The row has at least one token, and its max_new_tokens fits the context.
        Raises CacheFullError if the cache is too small for the row alone.
        """
        self._model.cache.require_total(count_pages(len(row.history) + _to_run(row)), "a row")
        key = self._added
        self._added += 1
        self._rows[key] = row
        self._waiting.append(key)
        return key

    @property
    def running(self) -> bool:
        return any(not row.reason for row in self._rows.values())

    @property
    def waiting(self) -> int:
        """The number of rows without pages: not yet admitted, or preempted."""
        return len(self._waiting)

    @property
    def admitted(self) -> int:
        """The number of rows that have pages."""
        return len(self._sequences)

    def advance(self) -> list[tuple[int, str]]:
        """Runs one forward pass; returns (key, added text) for each row that drew a token (or several that its constraint
        decides), and for each row that ran out of time or found no pages, with the text it had held back.

        A row may be ended between two calls, with `end`.
        """
        held = [(key, text) for key, row in self._rows.items() if row.late() and (text := self.end(key, "time"))]
        self._remove_ended()
        held += self._admit()
        logits = self._next_logits()
        if logits is None:
            return held
        drawn = zip(self._sampled, self._sampler.step(logits).text, strict=True)
        pieces = [*held, *((key, text + self._jump(self._rows[key])) for key, text in drawn)]
        if not self.running:
            self.close()
        return pieces

    def end(self, key: int, reason: str) -> str:
        """Ends a row if it is running; returns the text that it had held back, "" if it had ended before."""
        row = self._rows.get(key)
        return "" if row is None or row.reason else row.end(reason)

    def close(self) -> None:
        """Releases the pages of all rows, ended or not."""
        for sequence in self._sequences.values():
            sequence.close()
        self._sequences.clear()

    def _jump(self, row: Row) -> str:
        """`Row.jump`, with long-rope no further than the short frequencies go: one forward pass, one rope of a row."""
        length = len(row.history)
        last = self._model.cache.last_length_like(length)
        return row.jump(MAX_JUMP if last is None else min(MAX_JUMP, last - length))

    def _remove_ended(self) -> None:
        ended = {key for key, row in self._rows.items() if row.reason}
        if not ended:
            return
        for place in reversed(range(len(self._sampled))):
            if self._sampled[place] in ended:
                self._unsample(place)
        self._waiting = deque(key for key in self._waiting if key not in ended)
        for key in ended:
            self._release(key)
            del self._rows[key]

    def _unsample(self, place: int) -> None:
        self._sampler.remove(place)
        self._logits.pop(self._sampled.pop(place), None)

    def _release(self, key: int) -> None:
        self._prefill.remove(key)
        self._scoring.remove(key)
        if key in self._sequences:
            self._sequences.pop(key).close()

    def _admit(self) -> list[tuple[int, str]]:
        """Admits waiting rows; returns the keys and the held-back texts of those that end for want of pages."""
        held: list[tuple[int, str]] = []
        while self._waiting and len(self._sequences) < self._scheduler.max_rows:
            key = self._waiting[0]
            try:
                if not self._take_pages(key):
                    break
            except CacheFullError as error:
                held += [(key, text)] if (text := self._rows[key].fail(error)) else []
            else:
                self._queue_prompt(key)
            self._waiting.popleft()
        return held

    def _take_pages(self, key: int) -> bool:
        """Whether a row has its pages now; if not, it waits. Raises CacheFullError if other callers have them and keep them."""
        row, cache = self._rows[key], self._model.cache
        capacity = len(row.history) + self._scheduler.reserved_tokens(_to_run(row))
        try:
            [self._sequences[key]] = admit(cache, 1, capacity)
        except CacheFullError:
            if not self._sequences:
                cache.wait_for(count_pages(capacity))
            return False
        return True

    def _queue_prompt(self, key: int) -> None:
        row, sequence = self._rows[key], self._sequences[key]
        if row.params.prompt_logprobs is None or len(row.history) > row.history.prompt_length:
            self._prefill.add(key, sequence, self._read_as_prompt(row))
        else:
            row.prompt_logprobs.clear()
            self._scoring.add(key, row, sequence)

    def _read_as_prompt(self, row: Row) -> list[int]:
        """The row's tokens; with long-rope those up to where a row that is read again left the short frequencies."""
        return row.history.tokens[: self._model.cache.last_length_like(row.history.prompt_length)]

    def _next_logits(self) -> np.ndarray | None:
        """Runs one forward pass.

        Returns the logits of the last token of every row of the sampler; None if not all of them have been run, or if there are
        prompts that run first.
        """
        decoding, logits = self._run_composed()
        if decoding and not self._logits:  # all rows of the sampler: most forward passes need no copy
            return logits
        self._logits.update(zip(decoding, logits, strict=True))
        if self._prompts_first or not self._sampled or len(self._logits) < len(self._sampled):
            return None
        logits = np.stack([self._logits[key] for key in self._sampled])
        self._logits.clear()
        return logits

    @property
    def _prompts_first(self) -> bool:
        """Whether no row draws yet, because there are prompts to run."""
        return not self._scheduler.chunked and bool(self._scoring or self._prefill)

    def _run_composed(self) -> tuple[list[int], np.ndarray]:
        """Runs a pass, with fewer rows if the cache is full; returns the decoding rows in it, and the logits of each."""
        while True:
            composed = self._compose()
            count = len(composed.decoding)
            if not composed.pieces:
                return [], np.zeros((0, self._model.config.vocab_size), np.float32)
            every = [False] * (len(composed.pieces) - 1) + [composed.scores]
            try:
                with self._scheduler.measure(composed.work):
                    logits = self._model.forward(composed.pieces, wanted=composed.wanted, every=every)
                break
            except CacheFullError:
                self._preempt_last()
        if len(composed.pieces) > count:
            self._scored = composed.scores
            self._start_sampling((self._scoring if self._scored else self._prefill).finish(logits[count:]))
        return composed.decoding, logits[:count]

    def _compose(self) -> _Forward:
        """The next pass: the last tokens of the rows that draw, pieces of prompts, or both."""
        decoding = [] if self._prompts_first else [key for key in self._sampled if key not in self._logits]
        sequences = [self._sequences[key] for key in decoding]
        waiting = len(self._prefill) + len(self._scoring)
        work = Work(len(decoding), sum(len(sequence) + 1 for sequence in sequences), waiting)
        rows = [(one, self._rows[key].history.tokens[len(one) :]) for key, one in zip(decoding, sequences, strict=True)]
        budget = self._scheduler.prompt_budget(work) if waiting else None
        alone = _Forward(decoding, rows, [True] * len(rows), work)
        return alone if budget is None else self._with_prompts(alone, budget)

    def _with_prompts(self, rows: _Forward, budget: Budget) -> _Forward:
        """A forward pass of rows, and as much as the budget allows of a prompt that is scored, or of the others."""
        scores = bool(self._scoring) and not (self._scored and self._prefill)
        prompts = [self._scoring.take(budget)] if scores else self._prefill.take(budget)
        wanted = [True] if scores else self._prefill.completing()
        sizes = [(len(sequence), len(piece)) for sequence, piece in prompts]
        work = rows.work._replace(tokens=sum(count for _, count in sizes), token_keys=sum(starmap(count_keys, sizes)))
        return _Forward(rows.decoding, [*rows.pieces, *prompts], [*rows.wanted, *wanted], work, scores)

    def _start_sampling(self, ready: dict[int, np.ndarray]) -> None:
        """Starts sampling the rows whose prompts have been run; ready: the logits of their last tokens.

        A row of which only a part has been read has its last tokens run by the next pass.
        """
        for key, logits in ready.items():
            row = self._rows[key]
            if len(row.history) == row.history.prompt_length:  # else it was preempted, and read its own tokens too
                row.cached_tokens = self._sequences[key].reused
            self._sampler.resume(row)
            self._sampled.append(key)
            if len(self._sequences[key]) == len(row.history):
                self._logits[key] = logits

    def _preempt_last(self) -> None:
        """Preempts the row that was admitted last; it will be the next to be admitted, and waits for others if it is alone."""
        key = next(reversed(self._sequences))
        if key in self._sampled:
            self._unsample(self._sampled.index(key))
        self._release(key)
        self._waiting.appendleft(key)


def _to_run(row: Row) -> int:
    """The number of tokens that a row may still draw and run: the last one, which ends it, does not run."""
    drawn = len(row.history) - row.history.prompt_length
    return max(0, (row.params.max_new_tokens or 0) - drawn - 1)
