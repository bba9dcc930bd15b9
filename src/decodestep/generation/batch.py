"""Rows that a model runs together, one forward pass at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from decodestep.models.decoder import PREFILL_BLOCK
from decodestep.sampling.row import Row
from decodestep.sampling.sampler import Sampler

if TYPE_CHECKING:
    from decodestep.models import Model


class Batch:
    """The rows of a sampler, run by a model until each of them has ended.

        while there are rows that have not ended:
            run up to PREFILL_BLOCK tokens that the cache does not hold yet, in the order of the rows
            once every row's last token has been run, draw each row's next token from its logits

    sampler: with all of its rows, none of them ended; the batch removes those that end. Each row has at least one token, and a
        max_new_tokens that the context has room for.
    rows: all of them, ended or not, in order.
    """

    def __init__(self, model: Model, sampler: Sampler) -> None:
        self._model, self._sampler = model, sampler
        self.rows: tuple[Row, ...] = tuple(sampler.rows)
        self._running = list(range(len(self.rows)))  # indices into `rows`, one for each row of the sampler
        self._cached = [0] * len(self.rows)  # how many tokens of each row the cache holds
        self._ready: list[tuple[list[int], np.ndarray]] = []  # rows whose last token has been run, and its logits
        self._cache = model.decoder.new_cache([len(row.history) + (row.params.max_new_tokens or 0) for row in self.rows])

    @property
    def running(self) -> bool:
        return any(not self.rows[i].reason for i in self._running)

    def advance(self) -> list[tuple[int, str]]:
        """One forward pass; returns (index of the row, text that it adds) for each row that drew a token after it, and
        what a row that is late had held back.

        A row may be ended between two calls, with `end`; it then takes no further part.
        """
        held = [(i, text) for i in self._running if self.rows[i].late() and (text := self.end(i, "time"))]
        self._remove_ended()
        if self._running and not self._all_ready():
            self._run_block()
        if not self._running or not self._all_ready():
            return held
        logits = self._ready[0][1] if len(self._ready) == 1 else np.concatenate([block for _, block in self._ready])
        self._ready = []
        return [*held, *zip(self._running, self._sampler.step(logits).text, strict=True)]

    def end(self, index: int, reason: str) -> str:
        """Ends a row that goes on; returns the text that was held back. Nothing for a row that has ended."""
        return "" if self.rows[index].reason else self.rows[index].end(reason)

    def _all_ready(self) -> bool:
        return sum(len(rows) for rows, _ in self._ready) == len(self._running)

    def _remove_ended(self) -> None:
        ended = [place for place, i in enumerate(self._running) if self.rows[i].reason]
        if not ended:
            return
        for place in reversed(ended):
            self._sampler.remove(place)
            del self._running[place]
        going = set(self._running)
        kept = [([place for place, i in enumerate(rows) if i in going], rows, logits) for rows, logits in self._ready]
        self._ready = [([rows[place] for place in places], logits[places]) for places, rows, logits in kept if places]

    def _run_block(self) -> None:
        """Runs the next tokens through the model, and keeps the logits of each row whose last token is among them."""
        tokens: list[int] = []
        sequence: list[int] = []
        positions: list[int] = []
        ready: list[int] = []
        wanted: list[int] = []
        for i in self._running:
            ids, start = self.rows[i].history.tokens, self._cached[i]
            end = min(len(ids), start + PREFILL_BLOCK - len(tokens))
            if start == end:
                continue
            tokens += ids[start:end]
            sequence += [i] * (end - start)
            positions += range(start, end)
            self._cached[i] = end
            if end == len(ids):
                ready.append(i)
                wanted.append(len(tokens) - 1)
        logits = self._forward(tokens, sequence, positions, wanted)
        if ready:
            self._ready.append((ready, logits))

    def _forward(self, tokens: list[int], sequence: list[int], positions: list[int], wanted: list[int]) -> np.ndarray:
        """Runs tokens[t], at positions[t] of row sequence[t]; returns float32 logits (len(wanted), V) of the wanted ones."""
        token, row, position, last = (np.array(values, np.int64) for values in (tokens, sequence, positions, wanted))
        return self._model.decoder.logits(token, row, position, self._cache, last)
