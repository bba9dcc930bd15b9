"""A request to an engine, as its client sees it: its rows, and what each pass adds to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from queue import SimpleQueue
from typing import NamedTuple

from decodestep.generation.completion import Completion, completion_of
from decodestep.ops.decode_step import TokenLogprobs
from decodestep.sampling.row import Row


class Delta(NamedTuple):
    """What a pass adds to one sample: one `Delta` for a token, several if a constraint determines tokens.

    sample: its index, 0 to n - 1. text: the complete characters that are added. token: the new token id, or None.
    logprobs: those of the token, if params.logprobs requests them. reason: why the sample has ended, as
    `Completion.finish_reason`; "" while it is running.
    """

    sample: int
    text: str
    token: int | None
    logprobs: TokenLogprobs | None
    reason: str


Listener = Callable[[Delta], object]


class EngineRequest:
    """A request submitted to an `Engine`, made by `Engine.submit`.

    number: its index among the engine's requests. prompt_ids: its prompt. rows: its samples. listener: as given to `submit`.

    Iterating yields the `Delta`s of all samples until each has ended. Each is yielded once: after `break`, another loop goes on
    with the next. One thread at a time may read them; an engine with a `deliver` function passes them to it instead.
    """

    def __init__(self, number: int, prompt_ids: list[int], rows: list[Row], listener: Listener | None) -> None:
        self.number = number
        self.prompt_ids = prompt_ids
        self.rows = rows
        self.listener = listener
        self.keys = [-1] * len(rows)  # of its rows in the engine's batch; -1 before they are there
        self.cancelled = threading.Event()
        self.deltas: SimpleQueue[Delta] = SimpleQueue()
        # How many tokens of its row have been reported, of each sample whose end has not been.
        self._reported = dict.fromkeys(range(len(rows)), len(prompt_ids))
        self._read = 0  # how many of the ends have been read

    def cancel(self) -> None:
        """Ends the running samples with the reason "cancelled" before the next pass. May be called again."""
        self.cancelled.set()

    @property
    def done(self) -> bool:
        """Whether the end of every sample has been reported."""
        return not self._reported

    def __iter__(self) -> Iterator[Delta]:
        while self._read < len(self.rows):
            delta = self.deltas.get()
            self._read += bool(delta.reason)
            yield delta

    def completions(self) -> list[Completion]:
        """What `generate` returns for the same prompt and params; while a sample is running, what it has so far.

        Does not wait: `finish_reason` is "" until the sample has ended, as it has when the deltas have been read.
        """
        return [completion_of(row, self.prompt_ids, 0) for row in self.rows]

    def new_deltas(self, texts: Mapping[int, str]) -> list[Delta]:
        """The deltas of the samples since the last call, for the engine's thread. texts: of rows, by their keys."""
        deltas: list[Delta] = []
        for sample, reported in list(self._reported.items()):
            row = self.rows[sample]
            tokens = row.history.tokens[reported:]
            deltas += _deltas(sample, row, tokens, texts.get(self.keys[sample], ""))
            self._reported[sample] += len(tokens)
            if row.reason:
                del self._reported[sample]
        return deltas


def _deltas(sample: int, row: Row, tokens: list[int], text: str) -> list[Delta]:
    """What the new tokens and the new text of a row, and its end, add to a sample; [] without any."""
    if not (tokens or text or row.reason):
        return []
    last = tokens[-1] if tokens else None
    logprobs = row.logprobs[-1] if tokens and row.logprobs else None
    return [
        *(Delta(sample, "", token, None, "") for token in tokens[:-1]),  # without log-probabilities: see `Row.jump`
        Delta(sample, text, last, logprobs, row.reason),
    ]
