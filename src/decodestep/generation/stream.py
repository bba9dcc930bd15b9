"""stream, astream: iterators over the text of one completion, which may be abandoned at any time."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakSet

from decodestep._base.checks import Words, require
from decodestep.generation.completion import Completion
from decodestep.generation.generate_call import GenerateCall
from decodestep.generation.prompts import Prompt
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.row_processors import Processors

if TYPE_CHECKING:
    from types import TracebackType

    from decodestep.models import Model

_STREAMS: WeakSet[CompletionStream] = WeakSet()  # open or not


def stream(
    model: Model,
    prompt: Prompt,
    params: SamplingParams | None = None,
    *,
    processors: Processors = (),
) -> CompletionStream:
    """The pieces of a prompt's completion, as they are generated: ``for piece in stream(model, prompt): ...``

    model, params, processors: as for `generate`; params of one completion. prompt: one, of any kind that `generate` takes.

    Returns an iterator. Each item is a str, one for each token (or for several that a constraint decides): the complete
    characters that they add to the text, often "". The pieces join to the completion's text. A beam search yields its text in
    one piece, at its end. After the last piece, and after the loop has been left, `CompletionStream.completion` is the
    `Completion`.
    Raises ValueError and ModelError as `generate` does, here and not at the first piece.
    """
    params = SamplingParams() if params is None else params
    require(isinstance(params, SamplingParams), "stream", "params", "a SamplingParams or None", params)
    count = params.num_return_sequences
    require(count == 1, "stream", "params", "of one completion", Words(f"num_return_sequences {count}"))
    return CompletionStream(model, prompt, params, processors)


def astream(
    model: Model,
    prompt: Prompt,
    params: SamplingParams | None = None,
    *,
    processors: Processors = (),
) -> AsyncCompletionStream:
    """`stream` for asyncio: ``async for piece in astream(model, prompt): ...``; the arguments are the same.

    The model runs in a thread of the stream's own, so that it never blocks the event loop. The thread ends with the stream: at
    its end, on an exception, and, after the current forward pass, when the task is cancelled or the loop is left. Exceptions of
    `stream` are raised with the first piece.
    """
    return AsyncCompletionStream(lambda: stream(model, prompt, params, processors=processors))


class CompletionStream:
    """An iterator over the pieces of a completion, made by `stream`.

    To stop reading ends the row, with finish_reason "cancelled", and frees its cache: leaving the loop does so as soon as
    nothing else refers to the stream; `close`, or the end of a ``with`` block, does so immediately. `close` may be called from
    another thread; the current forward pass is then the last one. Exceptions of the row's own processors are raised to the
    reader.
    """

    def __init__(self, model: Model, prompt: Prompt, params: SamplingParams, processors: Processors) -> None:
        self._lock = threading.Lock()  # held while the model runs
        self._reader: int | None = None  # the thread that has the lock to read a piece
        self._is_orphan = False  # in a forked child: another thread was reading, which has left the row as it may be
        self._closed = threading.Event()
        self._pieces: list[str] = []
        self._completion: Completion | None = None
        # The call is given the event and not this object, which would then live until the next garbage collection.
        self._call: GenerateCall | None = GenerateCall(model, [prompt], [params], processors, self._closed.is_set)
        _STREAMS.add(self)

    def __iter__(self) -> CompletionStream:
        return self

    def __next__(self) -> str:
        if self._reader == threading.get_ident():
            raise RuntimeError("stream: the row's own code cannot read its stream, whose next piece waits for it")
        if self._is_orphan:
            raise RuntimeError("stream: another thread was reading it when this process was forked; only the parent can go on")
        try:
            with self._lock:
                self._reader = threading.get_ident()
                try:
                    piece = self._next()
                finally:
                    self._reader = None
        finally:
            if self._closed.is_set():  # by another thread, which could not get the lock
                self.close()
        if piece is None:
            raise StopIteration
        return piece

    @property
    def completion(self) -> Completion:
        """The completion; its text is that of the pieces read. Raises RuntimeError while the stream is running."""
        if self._completion is None:
            raise RuntimeError("stream: the completion is available after the last piece, or after close()")
        return self._completion

    def close(self) -> None:
        """Ends the row if it is running. May be called more than once."""
        self._closed.set()
        if self._lock.acquire(blocking=False):
            try:
                self._finish()
            finally:
                self._lock.release()

    def __reduce__(self) -> NoReturn:  # the end of either would end the row of both
        raise TypeError("a CompletionStream cannot be copied or pickled: start another one")

    def __enter__(self) -> CompletionStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_call"):  # not where the arguments were refused
            self.close()

    def _next(self) -> str | None:
        """The next piece; None at the end."""
        try:
            while self._call is not None and self._call.running:
                pieces = self._call.advance()
                if self._closed.is_set():
                    break
                if pieces:
                    piece = "".join(text for _, text in pieces)
                    self._pieces.append(piece)
                    return piece
        except BaseException:
            self._finish()
            raise
        if self._finish() and self._completion and (error := self._completion.error):
            if isinstance(error, (StopIteration, StopAsyncIteration)):  # it would be taken for the end of the stream
                raise RuntimeError(f"stream: a processor raised {type(error).__name__}") from error
            raise error
        return None

    def _finish(self) -> bool:
        """Stores the completion and releases everything else; False if that was done before."""
        call, self._call = self._call, None
        if call is None:
            return False
        call.cancel()
        call.close()
        self._completion = replace(call.completions()[0], text="".join(self._pieces))
        return True


class AsyncCompletionStream:
    """An asynchronous iterator over the pieces of a completion, made by `astream`; as `CompletionStream` otherwise.

    One task at a time may read it.
    """

    def __init__(self, start: Callable[[], CompletionStream]) -> None:
        self._start = start
        self._stream: CompletionStream | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._step: Future[Any] | None = None  # what the worker is doing
        self._closed = False

    def __aiter__(self) -> AsyncCompletionStream:
        return self

    async def __anext__(self) -> str:
        if self._closed:
            raise StopAsyncIteration
        try:
            if self._stream is None:
                self._stream = await self._in_worker(self._start)
            piece: str | None = await self._in_worker(next, self._stream, None)
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
        """The completion, after the last piece or `aclose`. Raises RuntimeError while there is none."""
        if self._stream is None:
            raise RuntimeError("astream: the completion is available after the last piece, or after aclose()")
        return self._stream.completion

    async def aclose(self) -> None:
        """Ends the row if it is running, and waits for the current forward pass. May be called more than once."""
        self._close()
        if self._step is not None and not self._step.done():
            await asyncio.wait([asyncio.wrap_future(self._step)])
        if self._worker is not None:
            self._worker.shutdown()  # the thread is idle, and ends at once

    def __reduce__(self) -> NoReturn:  # as for `CompletionStream`
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

    async def _in_worker(self, function: Callable[..., Any], *arguments: object) -> Any:
        """The function's result, from the worker thread."""
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "decodestep-stream")
        self._step = self._worker.submit(contextvars.copy_context().run, function, *arguments)
        return await asyncio.wrap_future(self._step)

    def _close(self) -> None:
        self._closed = True
        if self._stream is not None:
            self._stream.close()
        if self._worker is not None:
            self._worker.shutdown(wait=False)  # the thread ends after what it is doing


def _begin_child() -> None:
    """After a fork: the thread that was reading a stream goes on in the parent alone."""
    for stream in _STREAMS:
        stream._is_orphan |= stream._lock.locked() and stream._reader != threading.get_ident()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)
