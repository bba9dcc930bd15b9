"""Engine: one thread that runs the rows of all requests together, one forward pass at a time."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from decodestep._base.checks import is_int, is_real, refuse, require
from decodestep._base.memory import trim_heap
from decodestep._base.threads import use_threads
from decodestep.errors import EngineClosedError as EngineClosedError
from decodestep.errors import QueueFullError as QueueFullError
from decodestep.generation.batch import Batch
from decodestep.generation.drafts import Draft, drafters_of
from decodestep.generation.drafts.drafting import new_drafters
from decodestep.generation.engine_request import Delta, EngineRequest, Listener
from decodestep.generation.forward_cost import recent_cost
from decodestep.generation.prompts import Prompt, read_prompt
from decodestep.generation.scheduler import ChunkedPrefill
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.row import Row, within_room
from decodestep.sampling.row_factory import RowFactory
from decodestep.sampling.thinking_budget import ReasoningMarks

if TYPE_CHECKING:
    from types import TracebackType

    from decodestep.models import Model

_OP = "Engine"
_LOG = logging.getLogger("decodestep.serving")

_IDLE_SLABS = 16  # of the cache, 16 MB each, allocated ahead while the engine is idle
_IDLE_SECONDS = 1.0  # without a row, after which freed memory is returned to the system

COMPILE_SECONDS = 10.0  # of CPU time, for compiling the constraints of all rows of a request

Deliver = Callable[[list[tuple[EngineRequest, Delta]]], None]


class Engine:
    """Runs requests as they arrive, batched together; each gets the tokens that it would get alone.

        while there are rows:
            end the rows that are cancelled or out of time
            admit waiting rows, in order, while there are fewer than max_rows and the cache has room for their prompts
            in one forward pass, run the last token of every decoding row, tokens that it drafts, and a chunk of the prompts
            draw a token for each decoding row, and deliver it; while it is the one that the row has drafted, the next too

    A prompt runs in chunks, each of which lengthens a pass by about half at most (see `ChunkedPrefill`); a prefix that is in
    the cache is not run again. When the cache is full, the rows that were admitted last release their pages and resume later
    where they stopped. A row's tokens depend only on its prompt, params and seed: they are exactly those of `generate`. Methods
    may be called from any thread. `close`, or leaving the `with` block, ends the engine's thread.

    Args:
        model: made by `load`. Its cache is shared with all other users of the model.
        max_rows: the largest number of rows that run together, >= 1.
        max_waiting: how many more may wait, >= 0.
        draft: as for `generate`.
        deliver: called on the engine's thread with the deltas of each token that the rows draw; it must not block. None: the
            deltas are read by iterating over each `EngineRequest`, or its completions with `EngineRequest.result`.
    """

    def __init__(
        self,
        model: Model,
        *,
        max_rows: int = 64,
        max_waiting: int = 256,
        draft: Draft = "auto",
        deliver: Deliver | None = None,
    ) -> None:
        require(is_int(max_rows) and max_rows >= 1, _OP, "max_rows", "an integer >= 1", max_rows)
        require(is_int(max_waiting) and max_waiting >= 0, _OP, "max_waiting", "an integer >= 0", max_waiting)
        self.model = model
        self.max_rows = max_rows
        self.passes = 0  # forward passes so far
        self.failures = 0  # of these, how many raised
        self.drafted = self.accepted = 0  # tokens of the rows that have ended
        self._drafters = drafters_of(model, draft)
        self._max_live = max_rows + max_waiting
        self._deliver = deliver or _to_requests
        self._wake = threading.Condition()
        self._incoming: list[EngineRequest] = []  # not in the batch yet
        self._requests: list[EngineRequest] = []  # in the batch, in order of arrival; used only by the engine's thread
        self._live = 0  # rows of both
        self._submitted = 0  # how many requests have been taken
        self._row_seconds = 1.0  # a moving average of a row's duration
        self._closing = False
        self._error: BaseException | None = None  # what has ended the thread, if anything has
        self._deadline: float | None = None
        self._batch = self._new_batch()
        while model.cache.prepare():
            pass
        self._thread = threading.Thread(target=self._loop, name="decodestep-engine", daemon=True)
        atexit.register(self.close)  # otherwise the interpreter could exit during a pass
        self._thread.start()

    @property
    def live(self) -> int:
        """The number of rows that run or wait."""
        return self._live

    @property
    def running(self) -> int:
        """The number of rows that hold pages of the cache."""
        return self._batch.admitted

    @property
    def capacity(self) -> int:
        """The largest number of tokens of a prompt and its completion together, limited by the context and the cache."""
        return self.model.capacity()

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        listener: Listener | None = None,
        spelled: Collection[str] = (),
        marks: ReasoningMarks | None = None,
        only_scored: bool = False,
    ) -> EngineRequest:
        """Submits a request: a prompt and its params.

        Args:
            prompt: as for `generate`.
            params: with any number of samples but without beams; None for the model's own. max_new_tokens is limited to the
                room in the context and the cache, which is also the meaning of None. max_time starts now and includes waiting.
            listener: stored as `EngineRequest.listener` for the engine's `deliver`; the engine itself does not call it.
            spelled: names of control tokens that appear in the text by name, besides those that mark reasoning or calls in the
                answer to a conversation; other control tokens produce no text, and names that are not in the vocabulary are
                ignored.
            marks: of reasoning, for a prompt of token ids that are a conversation's, with a thinking budget; a constraint is
                then taken to let them pass.
            only_scored: whether the prompt's log-probabilities are all that is wanted: the prompt may then fill the context and
                the cache, because the row ends with its first token, which does not run.

        Raises:
            ValueError: as `generate` does, and for beams, a prompt that does not fit the cache, more samples than can be
                compiled in time with their constraint, or `spelled` that are no names.
            QueueFullError: if too many rows wait.
            EngineClosedError: if the engine takes no more requests.
        """
        params = self.model.default_params if params is None else params
        require(isinstance(params, SamplingParams), _OP, "params", "a SamplingParams or None", params)
        several = isinstance(spelled, Collection) and not isinstance(spelled, str)
        require(several and all(isinstance(name, str) for name in spelled), _OP, "spelled", "a collection of names", spelled)
        require(params.num_beams == 1, _OP, "num_beams", "1: a search runs in `generate`", params.num_beams)
        count = params.num_return_sequences
        self._require_room(count)
        least_room = 0 if only_scored else 1
        read = read_prompt(self.model, prompt, least_room)
        ids, answer = read
        texts = self.model.tokenizer.showing([*spelled, *(() if answer is None else answer.spelled)])
        factory = RowFactory.from_model(self.model).showing(texts, marks or read.marks(params))
        room = self._room_after(ids, least_room)
        params = within_room(params, 1 if only_scored else room)
        rows = _new_rows(factory, params, ids)
        drafters = [new_drafters(self._drafters, row) for row in rows]  # here, since other rows would wait for it
        with self._wake:
            self._require_room(count)  # other requests may have arrived meanwhile
            request = EngineRequest(self._submitted, ids, rows, listener, answer)
            request.drafters = drafters
            self._submitted += 1
            self._live += count
            self._incoming.append(request)
            self._wake.notify()
        return request

    def close(self, seconds: float = 0.0, *, wait: bool = True) -> None:
        """Accepts no more requests and ends the thread once all rows have ended. May be called again.

        Args:
            seconds: >= 0; rows still running after these are cancelled.
            wait: until the thread has ended.
        """
        require(is_real(seconds) and seconds >= 0, _OP, "seconds", "a number >= 0", seconds)
        with self._wake:
            self._closing = True
            self._deadline = time.monotonic() + seconds
            self._wake.notify()
        if wait and threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def require_alive(self) -> None:
        """Refuses an engine whose thread an error has ended, with an EngineClosedError."""
        if self._error is not None:
            raise EngineClosedError(f"the engine has stopped, by {self._error!r}") from self._error

    def require_possible(self, count: int) -> None:
        """Refuses more rows than max_rows + max_waiting, with a ValueError."""
        rule = f"at most {self._max_live}, for all prompts together"
        require(count <= self._max_live, _OP, "num_return_sequences", rule, count)

    def _require_room(self, count: int) -> None:
        self.require_alive()
        if self._closing:
            raise EngineClosedError("the server is stopping and accepts no more requests")
        if not self._thread.is_alive():  # only the thread that forks is there in the child
            raise EngineClosedError("the engine does not run in a forked process: start another one there")
        self.require_possible(count)
        if self._live + count > self._max_live:
            seconds = self._row_seconds * (self._live + count - self._max_live) / self.max_rows
            raise QueueFullError(self._live - self.max_rows, max(1, min(60, round(seconds))))

    def _room_after(self, ids: Sequence[int], least_room: int) -> int:
        """The number of tokens that a prompt leaves. Raises ValueError if they are fewer than `least_room`, 0 or 1."""
        room = self.capacity - len(ids)
        if room < least_room:
            rule = f"{'shorter' if least_room else 'no longer'} than the {self.capacity} tokens that the cache has room for"
            refuse(_OP, "prompt", rule, len(ids), "context_length_exceeded")
        return room

    def _new_batch(self) -> Batch:
        return Batch(self.model, ChunkedPrefill(self.max_rows, recent_cost(self.model)))

    def _loop(self) -> None:
        try:
            with use_threads(self.model.threads):
                self._run()
        except BaseException as error:  # of no pass: requests must not wait for a thread that is gone
            _LOG.exception("the engine has stopped")
            with self._wake:
                self._error = error
                self._requests += self._incoming
                self._incoming = []
            _fail_rows(self._requests, error)
            self._report({})
            self._batch.close()
        finally:
            atexit.unregister(self.close)

    def _run(self) -> None:
        """Runs forward passes until the engine has closed."""
        while self._wait():
            try:
                self._take_incoming()
                self.model.cache.prepare()
                held = self._end_cancelled()
                self.passes += 1
                for pieces in self._batch.advance():  # of other rows than those that have ended
                    self._report(held | dict(pieces))
                    held = self._end_cancelled() if self._batch.draws_drafts else {}
                self._report(held)
            except Exception as error:  # not attributable to one row: all rows end, the engine goes on
                self._fail(error)
                self._report({})

    def _wait(self) -> bool:
        """Waits for work; False once the engine has closed."""
        while not self._has_work() and self.model.cache.prepare(_IDLE_SLABS):
            pass
        with self._wake:
            idle = not self._wake.wait_for(self._has_work, _IDLE_SECONDS)
        if idle:
            trim_heap()  # mostly of the states of constraints
        with self._wake:
            self._wake.wait_for(self._has_work)
            return bool(self._incoming or self._requests)

    def _take_incoming(self) -> None:
        with self._wake:
            new, self._incoming = self._incoming, []
            self._requests += new
        for request in new:
            try:
                drafters, request.drafters = request.drafters, []
                for sample, (row, own) in enumerate(zip(request.rows, drafters, strict=True)):
                    request.keys[sample] = self._batch.add(row, own)
            except Exception as error:
                _fail_rows([request], error)

    def _has_work(self) -> bool:
        return bool(self._incoming or self._requests or self._closing)

    def _end_cancelled(self) -> dict[int, str]:
        """Ends the rows of cancelled requests; returns the texts that they held back, by their keys."""
        late = self._deadline is not None and time.monotonic() >= self._deadline
        ending = [request for request in self._requests if late or request.cancelled.is_set()]
        return {key: self._batch.end(key, "cancelled") for request in ending for key in request.keys}

    def _fail(self, error: Exception) -> None:
        self.failures += 1
        _LOG.exception("a forward pass failed; all its rows have ended")
        _fail_rows(self._requests, error)
        self._batch.close()
        self._batch = self._new_batch()

    def _report(self, texts: dict[int, str]) -> None:
        """Delivers what rows have gained, and forgets what has ended. texts: the new text of rows, by their keys."""
        deltas = [(request, delta) for request in self._requests for delta in request.new_deltas(texts)]
        ended = [request.rows[delta.sample] for request, delta in deltas if delta.reason]
        if ended:
            now = time.monotonic()
            for row in ended:
                self._row_seconds += 0.1 * (now - row.started - self._row_seconds)
                self.drafted += sum(row.drafted.values())
                self.accepted += len(row.accepted)
            with self._wake:
                self._live -= len(ended)
            self._requests = [request for request in self._requests if not request.done]
        if deltas:
            try:
                self._deliver(deltas)
            except Exception:  # a failing listener must not affect other requests
                _LOG.exception("tokens could not be delivered")


def _new_rows(factory: RowFactory, params: SamplingParams, ids: Sequence[int]) -> list[Row]:
    """The row of each sample. Each compiles its own constraint, so an expensive constraint limits the number of samples."""
    began, rows = time.thread_time(), list[Row]()
    for sample in params.samples():
        if rows and time.thread_time() - began > COMPILE_SECONDS:
            rule = f"at most {len(rows)} with a constraint that takes this long to compile"
            refuse(_OP, "num_return_sequences", rule, params.num_return_sequences)
        rows.append(factory.row(sample, ids))
    return rows


def _fail_rows(requests: Sequence[EngineRequest], error: BaseException) -> None:
    for request in requests:
        for row in request.rows:
            if not row.reason:
                row.fail(error)


def _to_requests(deltas: list[tuple[EngineRequest, Delta]]) -> None:
    for request, delta in deltas:
        request.put(delta)
