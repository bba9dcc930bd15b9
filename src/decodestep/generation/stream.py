"""stream, astream: iterators over the text of one completion, which may be abandoned at any time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn
from weakref import WeakSet

from decodestep._base.checks import require
from decodestep.generation.async_stream import AsyncCompletionStream, EngineRow, OwnThread, of_one, raise_error
from decodestep.generation.completion import Completion
from decodestep.generation.drafts import Draft
from decodestep.generation.engine import Engine
from decodestep.generation.generate_call import GenerateCall
from decodestep.generation.pieces import Piece
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
    draft: Draft = "auto",
) -> CompletionStream:
    """The pieces of a prompt's completion, as they are generated: ``for piece in stream(model, prompt): ...``

    Args:
        model: as for `generate`.
        prompt: one, as for `generate`.
        params: as for `generate`, of one completion.
        processors: as for `generate`.
        draft: as for `generate`.

    Returns:
        An iterator. Each item is a `Piece`, one for each token: a str of the complete characters that it adds to the text,
        often "". The pieces join to the completion's text; their `parts` say what of an answer to a conversation they are:
        reasoning, content, or a call's arguments. A beam search yields its text in one piece, at its end. After the last piece,
        and after the loop has been left, `CompletionStream.completion` is the `Completion`.

    Raises:
        ValueError: as `generate` does, here and not at the first piece.
        ModelError: likewise.
    """
    return CompletionStream(model, prompt, of_one(model, params), processors, draft)


def astream(
    model: Model | Engine,
    prompt: Prompt,
    params: SamplingParams | None = None,
    *,
    processors: Processors = (),
    draft: Draft = "auto",
) -> AsyncCompletionStream:
    """`stream` for asyncio: ``async for piece in astream(model, prompt): ...``

    The streams of a model that are open at the same time share an engine, which runs them together in each forward pass and
    ends with the last of them; at most 512 run, and the others wait. So the event loop is never blocked, and a row may be ahead
    of its reader. A stream with beams, or with processors, which may take their time, runs alone in a thread of its own, with
    the context of the task; an engine that is given refuses these.

    A row ends with its stream: at its end, on an exception, and, after the current forward pass, when the task is cancelled or
    the loop is left. Exceptions of `stream` and `Engine.submit` are raised with the first piece.

    Args:
        model: as for `stream`, or an `Engine` of one.
        prompt: as for `stream`.
        params: as for `stream`.
        processors: as for `stream`.
        draft: as for `stream`; with an engine that is given "auto", which is the engine's own, or None.
    """
    if isinstance(model, Engine):
        require(not callable(processors) and not [*processors], "astream", "processors", "left out with an Engine", processors)
        require(draft in ("auto", None), "astream", "draft", '"auto" or None with an Engine', draft)
        return AsyncCompletionStream(EngineRow(model, prompt, params, draft))
    has_beams = isinstance(params, SamplingParams) and params.num_beams > 1
    if has_beams or callable(processors) or [*processors]:
        return AsyncCompletionStream(OwnThread(lambda: stream(model, prompt, params, processors=processors, draft=draft)))
    return AsyncCompletionStream(EngineRow(model, prompt, params, draft))


class CompletionStream:
    """An iterator over the pieces of a completion, made by `stream`.

    To stop reading ends the row, with finish_reason "cancelled", and frees its cache: leaving the loop does so as soon as
    nothing else refers to the stream; `close`, or the end of a ``with`` block, does so immediately. `close` may be called from
    another thread; the current forward pass is then the last one. Exceptions of the row's own processors are raised to the
    reader.
    """

    def __init__(
        self, model: Model, prompt: Prompt, params: SamplingParams, processors: Processors, draft: Draft = "auto"
    ) -> None:
        self._lock = threading.Lock()  # held while the model runs
        self._reader: int | None = None  # the thread that has the lock to read a piece
        self._is_orphan = False  # in a forked child: another thread was reading, which has left the row as it may be
        self._closed = threading.Event()
        self._pieces: list[Piece] = []
        self._completion: Completion | None = None
        # The call is given the event and not this object, which would then live until the next garbage collection.
        self._call: GenerateCall | None = GenerateCall(model, [prompt], [params], processors, self._closed.is_set, draft)
        self._coming: Iterator[tuple[int, Piece]] = iter(())  # the pieces of the forward pass
        _STREAMS.add(self)

    def __iter__(self) -> CompletionStream:
        return self

    def __next__(self) -> Piece:
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
        """The completion; its text is that of the pieces read.

        Raises:
            RuntimeError: while the stream is running.
        """
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

    def _next(self) -> Piece | None:
        """The next piece; None at the end."""
        try:
            while self._call is not None:
                _, piece = next(self._coming, (0, None))
                if self._closed.is_set():
                    break
                if piece is not None:
                    self._pieces.append(piece)
                    return piece
                if not self._call.running:
                    break
                self._coming = self._call.advance()
        except BaseException:
            self._finish()
            raise
        if self._finish() and self._completion:
            raise_error(self._completion)
        return None

    def _finish(self) -> bool:
        """Stores the completion and releases everything else; False if that was done before."""
        call, self._call = self._call, None
        if call is None:
            return False
        call.cancel()
        self._coming = iter(())
        call.close()
        [self._completion] = call.completions("".join(self._pieces))
        return True


def _begin_child() -> None:
    """After a fork: the thread that was reading a stream goes on in the parent alone."""
    for stream in _STREAMS:
        stream._is_orphan |= stream._lock.locked() and stream._reader != threading.get_ident()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)
