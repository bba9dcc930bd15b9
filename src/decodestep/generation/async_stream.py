"""The stream of `astream`: a row of an engine, or a `CompletionStream` in a thread of its own."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from decodestep._base.checks import Phrase, require
from decodestep.generation.completion import Completion
from decodestep.generation.drafts import Draft
from decodestep.generation.engine import Engine
from decodestep.generation.engine_request import EngineRequest
from decodestep.generation.pieces import Piece
from decodestep.generation.prompts import Prompt
from decodestep.generation.shared_engine import EngineLease
from decodestep.sampling.params import SamplingParams

if TYPE_CHECKING:
    from types import TracebackType

    from decodestep.generation.stream import CompletionStream
    from decodestep.models import Model


class Source(Protocol):
    """What an asynchronous stream reads its pieces from."""

    async def next(self) -> Piece | None:
        """The next piece; None at the end."""

    @property
    def completion(self) -> Completion | None:
        """The completion; None before the row has ended."""

    def close(self) -> None:
        """Ends the row if it is running, without waiting. May be called again."""

    async def closed(self) -> None:
        """Waits, after `close`, until nothing of the row runs any more."""


class AsyncCompletionStream:
    """An asynchronous iterator over the pieces of a completion, made by `astream`.

    To stop reading ends the row, with finish_reason "cancelled", and frees its cache: leaving the loop does so as soon as
    nothing else refers to the stream; `aclose`, or the end of an ``async with`` block, does so and waits for it. Exceptions of
    the row's own code are raised to the reader. One task at a time may read it.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._closed = False

    def __aiter__(self) -> AsyncCompletionStream:
        return self

    async def __anext__(self) -> Piece:
        if self._closed:
            raise StopAsyncIteration
        try:
            piece = await self._source.next()
        except Exception:
            await self.aclose()
            raise
        except BaseException:  # the task is cancelled: it must not wait
            self._close()
            raise
        if piece is None:
            await self.aclose()
            raise StopAsyncIteration
        return piece

    @property
    def completion(self) -> Completion:
        """The completion, after the last piece or `aclose`; what the row has got, read or not.

        Raises:
            RuntimeError: while there is none.
        """
        if (found := self._source.completion) is None:
            raise RuntimeError("astream: the completion is available after the last piece, or after aclose()")
        return found

    async def aclose(self) -> None:
        """Ends the row if it is running, and waits for the current forward pass. May be called more than once."""
        self._close()
        await self._source.closed()

    def __reduce__(self) -> NoReturn:  # the end of either would end the row of both
        raise TypeError("an AsyncCompletionStream cannot be copied or pickled: start another one")

    async def __aenter__(self) -> AsyncCompletionStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if hasattr(self, "_closed"):
            self._close()

    def _close(self) -> None:
        self._closed = True
        self._source.close()


class EngineRow:
    """A row of an engine: of one that is given, or of the one that a model's streams with the same drafters share."""

    def __init__(self, model: Model | Engine, prompt: Prompt, params: SamplingParams | None, draft: Draft) -> None:
        self._model, self._prompt, self._params, self._draft = model, prompt, params, draft
        # Between the thread that submits and `close`, which the garbage collector may call there.
        self._lock = threading.RLock()
        self._lease: EngineLease | None = None
        self._request: EngineRequest | None = None
        self._begun: Future[None] | None = None
        self._is_closed = False

    async def next(self) -> Piece | None:
        if self._begun is None:  # in a thread: templates, tokenizers and constraints take their time
            worker = ThreadPoolExecutor(1, "decodestep-stream")
            self._begun = worker.submit(self._begin)
            worker.shutdown(wait=False)  # the thread ends after that
            await asyncio.wrap_future(self._begun)
        assert self._request is not None
        async for delta in self._request:
            return Piece(delta.text, delta.parts)
        [completion] = self._request.completions()
        raise_error(completion)
        return None

    @property
    def completion(self) -> Completion | None:
        return self._request.completions()[0] if self._request is not None and self._request.done else None

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._request is not None:
                self._request.cancel()
            if self._lease is not None:
                self._lease.end()

    async def closed(self) -> None:
        if self._begun is not None and not self._begun.done():
            await asyncio.wait([asyncio.wrap_future(self._begun)])
        if self._request is not None:
            async for _ in self._request:
                pass

    def _begin(self) -> None:
        if isinstance(self._model, Engine):
            self._submit(self._model)
            return
        of_one(self._model, self._params)  # what is wrong is refused before an engine is started
        self._lease = EngineLease(self._model, "auto" if self._draft is None else self._draft)
        try:
            self._submit(self._lease.engine)
        except BaseException:
            self._lease.end()
            raise

    def _submit(self, engine: Engine) -> None:
        params = of_one(engine.model, self._params)
        request = engine.submit(self._prompt, replace(params, draft=False) if self._draft is None else params)
        with self._lock:
            self._request = request
        if self._is_closed:
            self.close()


class OwnThread:
    """A `CompletionStream` that a thread of its own reads, with the context of the task."""

    def __init__(self, start: Callable[[], CompletionStream]) -> None:
        self._start = start
        self._stream: CompletionStream | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._step: Future[Any] | None = None  # what the worker is doing

    async def next(self) -> Piece | None:
        if self._stream is None:
            self._stream = await self._in_worker(self._start)
        piece: Piece | None = await self._in_worker(next, self._stream, None)
        return piece

    @property
    def completion(self) -> Completion | None:
        return None if self._stream is None else self._stream.completion

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        if self._worker is not None:
            self._worker.shutdown(wait=False)  # the thread ends after what it is doing

    async def closed(self) -> None:
        if self._step is not None and not self._step.done():
            await asyncio.wait([asyncio.wrap_future(self._step)])
        if self._worker is not None:
            self._worker.shutdown()  # the thread is idle, and ends at once

    async def _in_worker(self, function: Callable[..., Any], *arguments: object) -> Any:
        """The function's result, from the worker thread."""
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "decodestep-stream")
        self._step = self._worker.submit(contextvars.copy_context().run, function, *arguments)
        return await asyncio.wrap_future(self._step)


def of_one(model: Model, params: SamplingParams | None) -> SamplingParams:
    """The params of a stream, which are of one completion; None for the model's own."""
    params = model.default_params if params is None else params
    require(isinstance(params, SamplingParams), "stream", "params", "a SamplingParams or None", params)
    count = params.num_return_sequences
    require(count == 1, "stream", "params", "of one completion", Phrase(f"num_return_sequences {count}"))
    return params


def raise_error(completion: Completion) -> None:
    """Raises the exception of a row's own code, if one has ended the row."""
    if (error := completion.error) is not None:
        if isinstance(error, (StopIteration, StopAsyncIteration)):  # it would be taken for the end of the stream
            raise RuntimeError(f"stream: a processor raised {type(error).__name__}") from error
        raise error
