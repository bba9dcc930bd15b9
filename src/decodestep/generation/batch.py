"""Rows that a model runs together, one forward pass at a time."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from decodestep.generation.prompt_logprobs import PromptScoring
from decodestep.models.page_pool import CacheFullError
from decodestep.models.prefill import Prefill
from decodestep.models.sequence import CachedSequence, admit, pages_of
from decodestep.sampling.row import Row
from decodestep.sampling.sampler import Sampler

if TYPE_CHECKING:
    from decodestep.models import Model


class Batch:
    """The rows of a sampler, run by a model until each of them has ended.

        while there are rows that have not ended:
            admit further rows, in order, while the cache has pages for all that a row may become
            if there are prompts that have not been run: run a block of them
            else: run the last token of every row together, and draw each row's next token

    sampler: with all of its rows, none of them ended; the batch takes them out, and puts those back that are being sampled.
        Each row has at least one token, and a max_new_tokens that the context has room for.
    rows: all of them, ended or not, in order.

    `close` gives back the pages of the cache, as the end of the last row does.
    Raises CacheFullError if the cache is too small for a row alone.
    """

    def __init__(self, model: Model, sampler: Sampler) -> None:
        self._model, self._sampler = model, sampler
        self.rows: tuple[Row, ...] = tuple(sampler.rows)
        most = max((pages_of(_capacity(row)) for row in self.rows), default=0)
        if most > model.cache.pages:
            have = f"the cache has {model.cache.pages}"
            raise CacheFullError(f"a row may need {most} pages, and {have}: load the model with more cache_bytes")
        for place in reversed(range(len(self.rows))):
            sampler.remove(place)
        self._waiting = deque(range(len(self.rows)))  # indices into `rows`, as all that follows
        self._sequences: dict[int, CachedSequence] = {}  # of the rows that have been admitted
        self._prefill: Prefill[int] = Prefill(model)
        self._scoring = PromptScoring(model)  # the prompts that are reported on
        self._sampled: list[int] = []  # the rows of the sampler
        self._logits: dict[int, np.ndarray] = {}  # of those of them whose last token has been run

    @property
    def running(self) -> bool:
        return any(not row.reason for row in self.rows)

    def advance(self) -> list[tuple[int, str]]:
        """One forward pass; returns (index of the row, text that it adds) for each row that drew a token after it, and
        what a row that is late had held back.

        A row may be ended between two calls, with `end`; it then takes no further part.
        """
        held = [(i, text) for i, row in enumerate(self.rows) if row.late() and (text := self.end(i, "time"))]
        self._remove_ended()
        self._admit()
        prompts = self._scoring or self._prefill
        if prompts:
            for i, logits in prompts.run().items():
                self._sampler.resume(self.rows[i])
                self._sampled.append(i)
                self._logits[i] = logits
        if self._scoring or self._prefill or not self._sampled:
            return held
        pieces = [*held, *zip(self._sampled, self._sampler.step(self._next_logits()).text, strict=True)]
        if not self.running:
            self.close()
        return pieces

    def end(self, index: int, reason: str) -> str:
        """Ends a row that goes on; returns the text that was held back. Nothing for a row that has ended."""
        return "" if self.rows[index].reason else self.rows[index].end(reason)

    def close(self) -> None:
        """Gives back the pages of all rows, ended or not."""
        for sequence in self._sequences.values():
            sequence.close()
        self._sequences.clear()

    def _remove_ended(self) -> None:
        if not any(self.rows[i].reason for i in (*self._sequences, *self._waiting)):
            return
        for place in reversed(range(len(self._sampled))):
            if self.rows[self._sampled[place]].reason:
                self._sampler.remove(place)
                self._logits.pop(self._sampled.pop(place), None)
        for i in [i for i in self._sequences if self.rows[i].reason]:
            self._prefill.remove(i)
            self._scoring.remove(i)
            self._sequences.pop(i).close()
        self._waiting = deque(i for i in self._waiting if not self.rows[i].reason)

    def _admit(self) -> None:
        cache = self._model.cache
        while self._waiting:
            i = self._waiting[0]
            row = self.rows[i]
            try:
                [self._sequences[i]] = admit(cache, 1, _capacity(row))
            except CacheFullError:
                if not self._sequences:  # other callers have the pages
                    cache.wait_for(pages_of(_capacity(row)))
                return
            if row.params.prompt_logprobs is None:
                self._prefill.add(i, self._sequences[i], row.history.tokens)
            else:
                self._scoring.add(i, row, self._sequences[i])
            self._waiting.popleft()

    def _next_logits(self) -> np.ndarray:
        """The logits of the last token of every row of the sampler; runs those that have not been run."""
        new = [i for i in self._sampled if i not in self._logits]
        fresh = self._model.forward([(self._sequences[i], self.rows[i].history.tokens[-1:]) for i in new])
        if not self._logits:
            return fresh
        self._logits.update(zip(new, fresh, strict=True))
        logits = np.stack([self._logits[i] for i in self._sampled])
        self._logits.clear()
        return logits


def _capacity(row: Row) -> int:
    """How many tokens a row may come to, its prompt included."""
    return len(row.history) + (row.params.max_new_tokens or 0)
