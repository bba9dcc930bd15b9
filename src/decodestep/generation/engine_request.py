"""A request to an engine, as its client sees it: its rows, and what each token adds to them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NamedTuple

from decodestep.chat.answer_format import AnswerFormat
from decodestep.chat.answer_reader import Part
from decodestep.generation.completion import Completion, build_completion
from decodestep.generation.drafts.drafter import Drafter
from decodestep.generation.pieces import PieceReader, stop_of, text_of
from decodestep.ops.decode_step import TokenLogprobs
from decodestep.sampling.row import Row


class Delta(NamedTuple):
    """What a token adds to one sample.

    Attributes:
        sample: its index, 0 to n - 1.
        text: the complete characters that are added.
        token: the new token id, or None.
        logprobs: those of the token, if params.logprobs requests them.
        reason: why the sample has ended, as `Completion.finish_reason`; "" while it is running.
        parts: what the token adds to the reasoning, the content and the calls of an answer to a conversation, as
            `Piece.parts`. Read where an `EngineRequest` is iterated: none in what an engine passes to `deliver`.
    """

    sample: int
    text: str
    token: int | None
    logprobs: TokenLogprobs | None
    reason: str
    parts: tuple[Part, ...] = ()

    @property
    def reasoning(self) -> str:
        """The reasoning among the parts."""
        return text_of(self.parts, "reasoning")

    @property
    def content(self) -> str:
        """The content among the parts."""
        return text_of(self.parts, "content")


Listener = Callable[[Delta], object]


class EngineRequest:
    """A request submitted to an `Engine`, made by `Engine.submit`.

    Iterating, with ``for`` or ``async for``, yields the `Delta`s of all samples until each has ended. Each is yielded once:
    after `break`, another loop goes on with the next. One thread or task at a time may read them; an engine with a `deliver`
    function passes them to it instead. `result` waits for the completions, whether the deltas are read or not.

    Attributes:
        number: its index among the engine's requests.
        prompt_ids: its prompt.
        rows: its samples.
        listener: as given to `submit`.
    """

    number: int
    prompt_ids: list[int]
    rows: list[Row]
    listener: Listener | None

    def __init__(
        self,
        number: int,
        prompt_ids: list[int],
        rows: list[Row],
        listener: Listener | None,
        answer: AnswerFormat | None = None,
    ) -> None:
        """answer: how the answer to a conversation is read; None for another prompt."""
        self.number = number
        self.prompt_ids = prompt_ids
        self.rows = rows
        self.listener = listener
        self.keys = [-1] * len(rows)  # of its rows in the engine's batch; -1 before they are there
        self.drafters: list[list[Drafter]] = []  # those of each row, before they are there
        self.cancelled = threading.Event()
        self._readers = [PieceReader(answer) for _ in rows]
        self._deltas: SimpleQueue[Delta] = SimpleQueue()
        self._reader: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None  # of a task that waits for a delta
        self._ended = threading.Event()  # the end of every sample has been reported
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
            yield self._counted(self._deltas.get())

    def __aiter__(self) -> EngineRequest:
        return self

    async def __anext__(self) -> Delta:
        if self._read == len(self.rows):
            raise StopAsyncIteration
        loop, more = asyncio.get_running_loop(), asyncio.Event()
        while True:
            more.clear()
            self._reader = loop, more  # before looking: what comes after that is announced
            try:
                return self._counted(self._deltas.get_nowait())
            except Empty:
                await more.wait()

    def put(self, delta: Delta) -> None:
        """Adds a delta for the reader, for the engine's thread."""
        self._deltas.put(delta)
        reader, self._reader = self._reader, None
        if reader is not None:
            loop, more = reader
            with suppress(RuntimeError):  # the loop is closed: nobody reads on
                loop.call_soon_threadsafe(more.set)

    def result(self, timeout: float | None = None) -> list[Completion]:
        """The completions of all samples, as `generate` returns them, once each has ended.

        The engine's own thread, and an event loop, would wait in vain or be blocked: there, iterate, and call `completions`.

        Args:
            timeout: the seconds to wait at most; None for no limit.

        Raises:
            TimeoutError: after that.
        """
        if not self._ended.wait(timeout):
            raise TimeoutError(f"Engine: the request has not ended within {timeout} s")
        return self.completions()

    def _counted(self, delta: Delta) -> Delta:
        self._read += bool(delta.reason)
        stop = stop_of(self.rows[delta.sample]) if delta.reason else ""
        parts = self._readers[delta.sample].piece(delta.text, delta.reason, stop).parts
        return delta._replace(parts=parts) if parts else delta

    def completions(self) -> list[Completion]:
        """What `generate` returns for the same prompt and params; while a sample is running, what it has so far.

        Does not wait: `finish_reason` is "" until the sample has ended, as it has when the deltas have been read.
        """
        found = [build_completion(row, self.prompt_ids, 0) for row in self.rows]
        return [reader.told(one, stop_of(row)) for reader, one, row in zip(self._readers, found, self.rows, strict=True)]

    def new_deltas(self, texts: Mapping[int, str]) -> list[Delta]:
        """The deltas of the samples since the last call, for the engine's thread.

        Args:
            texts: of rows, by their keys.
        """
        deltas: list[Delta] = []
        for sample, reported in list(self._reported.items()):
            row, text = self.rows[sample], texts.get(self.keys[sample], "")
            token = row.history.tokens[reported] if len(row.history) > reported else None
            if token is not None or text or row.reason:
                logprobs = row.logprobs[-1] if token is not None and row.logprobs else None
                deltas.append(Delta(sample, text, token, logprobs, row.reason))
            self._reported[sample] += token is not None
            if row.reason:
                del self._reported[sample]
        if self.done:
            self._ended.set()
        return deltas
