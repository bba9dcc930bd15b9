"""What a client of the engine holds: its request while it runs, and what the request gains from pass to pass."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from decodestep.generation.completion import Completion, completion_of
from decodestep.ops.decode_step import TokenLogprobs
from decodestep.sampling.row import Row

if TYPE_CHECKING:
    from decodestep.serving.engine import Engine


class Gain(NamedTuple):
    """What one sample of a request gains by a pass: one of them for a token, several where a constraint decides tokens.

    sample: its number, 0 to n - 1. text: the whole characters that it gains. token: the id that it drew, or None.
    logprobs: those of the token, where params.logprobs asks for them. reason: why it has ended, as `Completion.finish_reason`;
    "" while it goes on.
    """

    sample: int
    text: str
    token: int | None
    logprobs: TokenLogprobs | None
    reason: str


Listener = Callable[[Gain], object]


class Ticket:
    """A request that an `Engine` has taken, made by `Engine.submit`.

    prompt_ids: its prompt. rows: its samples. number: counts the engine's requests. listener: as given to `submit`.

    Iterating gives the `Gain`s of all samples until each has ended. They can be read once, by one thread; an engine with a
    `deliver` of its own gives them to that instead.
    """

    def __init__(self, engine: Engine, number: int, prompt_ids: list[int], rows: list[Row], listener: Listener | None) -> None:
        self.number = number
        self.prompt_ids = prompt_ids
        self.rows = rows
        self.listener = listener
        self.keys: list[int] = []  # the engine's, of its rows in the batch
        self.cancelled = threading.Event()
        self.gains: SimpleQueue[Gain] = SimpleQueue()
        self._engine = engine
        self._lengths = [len(prompt_ids)] * len(rows)  # of each row, how much has been told
        self._ended = [False] * len(rows)

    def cancel(self) -> None:
        """Ends what goes on with the reason "cancelled", before the next pass. Harmless when called again."""
        self.cancelled.set()
        self._engine.wake()

    @property
    def done(self) -> bool:
        """Whether the end of every sample has been told."""
        return all(self._ended)

    def __iter__(self) -> Iterator[Gain]:
        for _ in self.rows:
            gain = self.gains.get()
            yield gain
            while not gain.reason:
                gain = self.gains.get()
                yield gain

    def completions(self) -> list[Completion]:
        """What `generate` returns for the same prompt and params."""
        return [completion_of(row, self.prompt_ids, 0) for row in self.rows]

    def news(self, text_of: Callable[[int], str]) -> list[Gain]:
        """What the samples have gained since the last call. For the engine's thread; text_of: of a sample, its new text."""
        gains = []
        for sample, row in enumerate(self.rows):
            if self._ended[sample]:
                continue
            text, tokens = text_of(sample), row.history.tokens[self._lengths[sample] :]
            if tokens or text or row.reason:
                gains += [Gain(sample, "", token, None, "") for token in tokens[:-1]]  # without log-probabilities: see `jump`
                logprobs = row.logprobs[-1] if tokens and row.params.logprobs is not None and row.logprobs else None
                gains.append(Gain(sample, text, tokens[-1] if tokens else None, logprobs, row.reason))
                self._lengths[sample] += len(tokens)
                self._ended[sample] = bool(row.reason)
        return gains
