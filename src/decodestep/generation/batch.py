"""Continuous batching: rows that a model runs together, one forward pass at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from decodestep.decoding.paged_tokens import count_pages
from decodestep.decoding.prefill import Budget, Prefill, count_keys
from decodestep.decoding.sequence import CachedSequence, admit
from decodestep.errors import CacheFullError
from decodestep.generation.drafts.drafter import Drafter
from decodestep.generation.drafts.drafting import Drafting
from decodestep.generation.forward_cost import Work, keep_cost, recent_cost
from decodestep.generation.masks_ahead import begin_masks, have_masks
from decodestep.generation.prompt_logprobs import PromptScoring
from decodestep.generation.scheduler import PrefillFirst, Scheduler
from decodestep.sampling.row import Row
from decodestep.sampling.sampler import Sampler

if TYPE_CHECKING:
    from decodestep.models import Model


class _Forward(NamedTuple):
    """The input of a forward pass.

    decoding: the keys of the rows that draw after it, whose pieces come first. drafts: the drafted tokens with which these end.
    wanted: as for `Model.forward`. scores: whether the last piece is of a prompt that is scored, which needs the logits of all
    its tokens.
    """

    decoding: list[int]
    drafts: list[list[int]]
    pieces: Sequence[tuple[CachedSequence, Sequence[int]]]
    wanted: list[bool]
    work: Work
    scores: bool = False


class _Drawing(NamedTuple):
    """What rows draw from next. drafts: of each row. logits: those after its last token and after each of its draft."""

    drafts: list[list[int]]
    logits: np.ndarray


class Batch:
    """Rows that a model runs until each has ended; rows may join and leave between two forward passes.

        while there are rows that have not ended:
            admit waiting rows, in order, while the cache has the pages that the scheduler reserves for a row
            run a block of the unprocessed prompts, as large as the scheduler allows
            run the last token of every row that draws, in the same pass or, with prompts first, once all prompts are done;
                with it the tokens that the row drafts, if any
            for each of them, draw its next token, and while that equals the next of its draft, the one after it
            drop what has been run of drafts that were not drawn

    A prompt that is scored (`params.prompt_logprobs`) takes the place of a block of the others, in every second such pass.

    scheduler: see `Scheduler`. A row that draws beside prompts drafts only what is certain, because these take the time that
        drafts would save.

    If the cache has no page for a running row, the row that was admitted last is preempted: it releases its pages and is
    admitted again when there is room. Its prompt and its tokens so far are then run again, unless the cache still has them. A
    row's tokens do not depend on any of this.
    The mask of a constrained row is computed on another thread from when the row has drawn, and while the next pass runs; a row
    that has none then draws as soon as it has, and the others go on.
    The pages of the cache are released by `close`, or when the last row ends.
    """

    def __init__(self, model: Model, scheduler: Scheduler | None = None) -> None:
        self._model = model
        self._sampler = Sampler((), vocab_size=model.config.vocab_size)  # of the rows that are being sampled
        self._scheduler = scheduler or PrefillFirst(recent_cost(model))
        self._drafting = Drafting()
        self._rows: dict[int, Row] = {}  # those that have not been taken out, by the key that `add` gave
        self._added = 0
        self._waiting: deque[int] = deque()  # keys, as in all that follows
        self._sequences: dict[int, CachedSequence] = {}  # of the rows that have been admitted, in that order
        self._prefill: Prefill[int] = Prefill(model, fair=self._scheduler.chunked)
        self._scoring = PromptScoring()  # the prompts that are reported on
        self._scored = False  # whether the last pass with a prompt was with one of them
        self._sampled: list[int] = []  # the rows of the sampler
        # Of those of them whose last token has been run: the draft that ran with it, and the logits.
        self._ran: dict[int, tuple[list[int], np.ndarray]] = {}
        self._held: dict[int, tuple[list[int], np.ndarray]] = {}  # likewise of rows that wait for a mask, out of the sampler

    def add(self, row: Row, drafters: Sequence[Drafter] = ()) -> int:
        """Adds a row that has not ended, with those that draft for it, and returns its key in this batch.

        The row has at least one token, and its max_new_tokens fits the context.
        Raises CacheFullError if the cache is too small for the row alone.
        """
        self._model.cache.require_total(count_pages(len(row.history) + _to_run(row)), "a row")
        key = self._added
        self._added += 1
        self._drafting.add(key, row, drafters)
        self._rows[key] = row
        self._waiting.append(key)
        return key

    @property
    def running(self) -> bool:
        return any(not row.reason for row in self._rows.values())

    @property
    def draws_drafts(self) -> bool:
        """Whether the pass that has run, and whose tokens are being drawn, has drafts."""
        return self._drafting.pending

    @property
    def waiting(self) -> int:
        """The number of rows without pages: not yet admitted, or preempted."""
        return len(self._waiting)

    @property
    def admitted(self) -> int:
        """The number of rows that have pages."""
        return len(self._sequences)

    @property
    def prompt_tokens_left(self) -> int:
        """The tokens of prompts that have not been run."""
        waiting = sum(self._rows[key].history.prompt_length for key in self._waiting)
        return waiting + self._prefill.tokens_left + self._scoring.tokens_left

    def advance(self) -> Generator[list[tuple[int, str]], None, None]:
        """Runs one forward pass; yields, once for each token that rows draw in turn, (key, added text) for each of these rows,
        the first time also for each row that ran out of time or found no pages, with the text it had held back.

        A row may be ended with `end` at any time, and then draws no more.
        """
        held = [(key, text) for key, row in self._rows.items() if row.late() and (text := self.end(key, "time"))]
        for key, error in self._drafting.take_errors().items():
            held += [(key, text)] if not self._rows[key].reason and (text := self._rows[key].fail(error)) else []
        self._remove_ended()
        held += self._admit()
        drawing = self._next_drawing()
        if drawing is None:
            yield held
            return
        drafting = {key for key, draft in zip(self._sampled, drawing.drafts, strict=True) if draft}
        try:
            for rows, result in self._sampler.steps(drawing.logits, drawing.drafts, have_masks):
                begin_masks(self._rows[self._sampled[i]] for i in rows)
                for key in [key for key in drafting if self._rows[key].reason]:  # its end tells what it has drafted
                    drafting.remove(key)
                    self._settle(key)
                yield [*held, *((self._sampled[i], text) for i, text in zip(rows, result.text, strict=True))]
                held = []
        finally:
            for key in drafting:
                self._settle(key)
        if not self.running:
            self.close()

    def end(self, key: int, reason: str) -> str:
        """Ends a row if it is running; returns the text that it had held back, "" if it had ended before."""
        row = self._rows.get(key)
        return "" if row is None or row.reason else row.end(reason)

    def close(self) -> None:
        """Releases the pages of all rows, ended or not."""
        self._drafting.close()
        for sequence in self._sequences.values():
            sequence.close()
        self._sequences.clear()
        self._held.clear()
        keep_cost(self._model, self._scheduler.cost)

    def _settle(self, key: int) -> None:
        """Drops what has been run of a row's draft and not drawn."""
        if key not in self._sequences:  # the pages have been released meanwhile
            return
        row, sequence = self._rows[key], self._sequences[key]
        self._drafting.settle(key, row)
        undrafted = len(sequence) - sequence.drafted
        sequence.keep(min(sequence.drafted, max(0, len(row.history) - 1 - undrafted)))  # the last token has not been run

    def _remove_ended(self) -> None:
        ended = {key for key, row in self._rows.items() if row.reason}
        if not ended:
            return
        for place in reversed(range(len(self._sampled))):
            if self._sampled[place] in ended:
                self._unsample(place)
        self._waiting = deque(key for key in self._waiting if key not in ended)
        for key in ended:
            self._drafting.remove(key)
            self._held.pop(key, None)
            self._release(key)
            del self._rows[key]

    def _unsample(self, place: int) -> None:
        self._sampler.remove(place)
        self._ran.pop(self._sampled.pop(place), None)

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
        self._drafting.attach(key, self._sequences[key])
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

    def _next_drawing(self) -> _Drawing | None:
        """Runs one forward pass.

        Returns what every row of the sampler draws from; None if the last tokens of not all of them have been run, or if there
        are prompts that run first.
        """
        self._take_held()
        decoding, (drafts, logits) = self._run_composed()
        if decoding and not self._ran:  # all rows of the sampler: most forward passes need no copy
            return self._hold(_Drawing(drafts, logits))
        ends = np.cumsum([len(draft) + 1 for draft in drafts])[:-1]
        self._ran.update(zip(decoding, zip(drafts, np.split(logits, ends), strict=False), strict=False))
        if self._prompts_first or not self._sampled or len(self._ran) < len(self._sampled):
            return None
        ran = [self._ran[key] for key in self._sampled]
        self._ran.clear()
        return self._hold(_Drawing([draft for draft, _ in ran], np.concatenate([logits for _, logits in ran])))

    def _hold(self, drawing: _Drawing) -> _Drawing | None:
        """Holds the rows of the sampler whose masks are not known; what the others draw from, if there are others."""
        known = have_masks([self._rows[key] for key in self._sampled])
        if all(known):
            return drawing
        ends = np.cumsum([len(draft) + 1 for draft in drawing.drafts])[:-1]
        each = list(zip(drawing.drafts, np.split(drawing.logits, ends), strict=True))
        for place in reversed(range(len(known))):
            if not known[place]:
                self._held[self._sampled[place]] = each.pop(place)
                self._unsample(place)
        return _Drawing([draft for draft, _ in each], np.concatenate([logits for _, logits in each])) if each else None

    def _take_held(self) -> None:
        """Gives the sampler back the rows whose masks are known; waits for one if there is nothing else to do."""
        keys = list(self._held)
        idle = not (self._sampled or self._prefill or self._scoring)
        for key, known in zip(keys, have_masks([self._rows[key] for key in keys], wait=idle), strict=True):
            if known:
                self._sampler.resume(self._rows[key])
                self._sampled.append(key)
                self._ran[key] = self._held.pop(key)

    @property
    def _prompts_first(self) -> bool:
        """Whether no row draws yet, because there are prompts to run."""
        return not self._scheduler.chunked and bool(self._scoring or self._prefill)

    def _run_composed(self) -> tuple[list[int], _Drawing]:
        """Runs a pass, with fewer rows if the cache is full; returns the decoding rows in it, and what they draw from."""
        drafting = True
        while True:
            composed = self._compose(drafting)
            if not composed.pieces:
                return [], _Drawing([], np.zeros((0, self._model.config.vocab_size), np.float32))
            prompts = len(composed.pieces) - len(composed.decoding)
            every = [False] * (len(composed.pieces) - 1) + [composed.scores]
            drafted = [*map(len, composed.drafts), *[0] * prompts]
            try:
                with self._scheduler.measure(composed.work):
                    logits = self._model.forward(composed.pieces, wanted=composed.wanted, every=every, drafted=drafted)
                break
            except CacheFullError:
                drafting = False  # another thread may have taken pages that nobody used
                for key in composed.decoding:
                    self._drafting.drop(key)
                if not composed.work.drafted:
                    self._preempt_last()
        count = len(composed.decoding) + composed.work.drafted
        if prompts:
            self._scored = composed.scores
            self._start_sampling((self._scoring if self._scored else self._prefill).finish(logits[count:]))
        return composed.decoding, _Drawing(composed.drafts, logits[:count])

    def _compose(self, drafting: bool) -> _Forward:
        """The next pass: the last tokens of the rows that draw, with their drafts, pieces of prompts, or both."""
        decoding = [] if self._prompts_first else [key for key in self._sampled if key not in self._ran]
        sequences = [self._sequences[key] for key in decoding]
        waiting = len(self._prefill) + len(self._scoring)
        work = Work(len(decoding), sum(len(sequence) + 1 for sequence in sequences), waiting)
        budget = self._scheduler.prompt_budget(work) if waiting else None
        drafts: list[list[int]] = [[] for _ in decoding]
        if drafting and decoding and self._drafting.possible(uncertain=budget is None):
            have_masks([self._rows[key] for key in decoding])  # with which they know what must follow
            drafts = self._choose_drafts(decoding, work, budget is None)
        rows = [
            (sequence, self._rows[key].history.tokens[len(sequence) :] + draft)
            for key, sequence, draft in zip(decoding, sequences, drafts, strict=True)
        ]
        alone = _Forward(decoding, drafts, rows, [True] * len(rows), work._replace(drafted=sum(map(len, drafts))))
        return alone if budget is None else self._with_prompts(alone, budget)

    def _choose_drafts(self, decoding: Sequence[int], work: Work, uncertain: bool) -> list[list[int]]:
        """The drafts of the rows of a pass. uncertain: also tokens that may turn out wrong."""
        cost = self._scheduler.cost
        self._drafting.choose(
            {key: self._rows[key] for key in decoding},
            lambda key: self._room_to_draft(self._rows[key], self._sequences[key], len(decoding)),
            (lambda drafted: cost.decoding(work._replace(drafted=drafted)) or 1.0) if uncertain else None,
        )
        return [self._drafting.tokens(key) for key in decoding]

    def _room_to_draft(self, row: Row, sequence: CachedSequence, rows: int) -> int:
        """How many tokens one of `rows` may draft: fewer than it may draw, no more than its share of unused pages holds, and
        with long-rope no further than the short frequencies go, because one pass has one rope of a row; none where there are no
        recurrent states to be kept of all rows."""
        length = len(row.history)
        if self._model.cache.spare_states < rows:
            return 0
        last = self._model.cache.last_length_like(length)
        pages = sequence.room(self._model.cache.unused // rows) - (length - len(sequence))
        return min(_to_run(row), pages, *([] if last is None else [last - length]))

    def _with_prompts(self, rows: _Forward, budget: Budget) -> _Forward:
        """A forward pass of rows, and as much as the budget allows of a prompt that is scored, or of the others."""
        scores = bool(self._scoring) and not (self._scored and self._prefill)
        prompts = [self._scoring.take(budget)] if scores else self._prefill.take(budget)
        wanted = [True] if scores else self._prefill.completing()
        sizes = [(len(sequence), len(piece)) for sequence, piece in prompts]
        work = rows.work._replace(tokens=sum(count for _, count in sizes), token_keys=sum(starmap(count_keys, sizes)))
        return _Forward(rows.decoding, rows.drafts, [*rows.pieces, *prompts], [*rows.wanted, *wanted], work, scores)

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
                self._ran[key] = [], logits[None]

    def _preempt_last(self) -> None:
        """Preempts the row that was admitted last; it will be the next to be admitted, and waits for others if it is alone."""
        key = next(reversed(self._sequences))
        if key in self._sampled:
            self._unsample(self._sampled.index(key))
        self._held.pop(key, None)
        self._drafting.release(key)
        self._release(key)
        self._waiting.appendleft(key)


def _to_run(row: Row) -> int:
    """The number of tokens that a row may still draw and run: the last one, which ends it, does not run."""
    drawn = len(row.history) - row.history.prompt_length
    return max(0, (row.params.max_new_tokens or 0) - drawn - 1)
