"""Engine: one thread that runs the rows of all requests together, a forward pass at a time."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from decodestep._base.checks import is_int, refuse, require
from decodestep._base.dispatch import use_threads
from decodestep.generation.batch import Batch
from decodestep.generation.prompts import Prompt, prompt_ids
from decodestep.generation.schedule import Beside
from decodestep.models.kv_cache import PAGE
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.row import Row
from decodestep.sampling.sampler import Sampler
from decodestep.serving.ticket import Gain as Gain
from decodestep.serving.ticket import Listener
from decodestep.serving.ticket import Ticket as Ticket

if TYPE_CHECKING:
    from types import TracebackType

    from decodestep.models import Model

_OP = "serve"
_LOG = logging.getLogger("decodestep.serving")

_IDLE_SLABS = 16  # of the cache, 16 MB each: whose memory is allocated while there is nothing to do

MOST_COMPILING = 10.0  # seconds of processor time for the constraints of all rows of a request

Deliver = Callable[[list[tuple[Ticket, Gain]]], None]


class QueueFullError(RuntimeError):
    """As many rows wait as may wait. retry_after: in how many seconds it is worth trying again, an estimate."""

    def __init__(self, waiting: int, retry_after: int) -> None:
        super().__init__(f"{waiting} completions are waiting already; try again in {retry_after} s")
        self.retry_after = retry_after


class EngineClosedError(RuntimeError):
    """The engine takes no more requests."""


class Engine:
    """Runs requests that come at any time, all together, each with the tokens that it would have alone.

        while there are rows:
            end the rows that are cancelled or late
            admit waiting rows, in order, while there are fewer than max_rows and the cache has room for their prompts
            run the last token of every row that draws, and beside them a piece of the prompts, in one forward pass
            draw a token for each of them, and tell their requests

    model: made by `load`. Its cache is shared with whoever else uses the model.
    max_rows: how many rows run together, >= 1. max_waiting: how many more may wait, >= 0.
    deliver: called on the engine's thread after each pass, with what was gained by it; it must not wait. None: each `Ticket`
        has its own gains.

    A prompt is run in pieces, each of which lengthens a pass by at most about half (see `Beside`), and what the cache holds of
    it is not run again. Where the cache is full, the rows that were admitted last give back their pages, and go on later
    where they stopped. A row's tokens depend on its prompt, its params and its seed alone, to the bit: they are those of
    `generate`.
    Any thread may call. `close`, or the end of the `with` block, ends the thread.
    """

    def __init__(self, model: Model, *, max_rows: int = 64, max_waiting: int = 256, deliver: Deliver | None = None) -> None:
        require(is_int(max_rows) and max_rows >= 1, _OP, "max_rows", "an integer >= 1", max_rows)
        require(is_int(max_waiting) and max_waiting >= 0, _OP, "max_waiting", "an integer >= 0", max_waiting)
        self.model = model
        self.max_rows = max_rows
        self.passes = 0  # how many forward passes have been run
        self.failures = 0  # how many of them raised
        self._most = max_rows + max_waiting
        self._deliver = deliver or _to_tickets
        self._wake = threading.Condition()
        self._incoming: list[Ticket] = []  # not in the batch yet
        self._tickets: list[Ticket] = []  # those in the batch, in the order of their coming; the engine's thread alone uses it
        self._live = 0  # rows of both
        self._taken = 0  # how many tickets have been made
        self._ended = 0  # how many rows have ended
        self._row_seconds = 1.0  # a moving average of how long a row takes
        self._closing = False
        self._deadline: float | None = None
        self._spelling: dict[frozenset[str], Callable[[int], bytes]] = {}
        self._batch = self._new_batch()
        while model.cache.prepare():
            pass
        self._thread = threading.Thread(target=self._loop, name="decodestep-engine", daemon=True)
        atexit.register(self.close)  # or the interpreter would end under a pass
        self._thread.start()

    @property
    def live(self) -> int:
        """How many rows run or wait."""
        return self._live

    @property
    def running(self) -> int:
        """How many rows have pages of the cache."""
        return self._batch.admitted

    @property
    def capacity(self) -> int:
        """How many tokens a prompt and its completion can be together: what the context and the cache have room for."""
        return min(self.model.config.context, self.model.cache.pages * PAGE)

    def submit(
        self,
        prompt: Prompt | Sequence[int],
        params: SamplingParams | None = None,
        *,
        listener: Listener | None = None,
        spelled: Collection[str] = (),
    ) -> Ticket:
        """Takes a request: a prompt, as for `generate`, and params without beams, of any number of samples.

        listener: `Ticket.listener`, for the engine's `deliver`; the engine itself does not call it.
        spelled: control tokens that the text shows, by their names, as far as the vocabulary has them; others leave nothing.

        max_new_tokens is cut to what the context and the cache have room for; None for as much as that. max_time counts from
        here on, waiting included.
        Raises ValueError as `generate` does, and for beams, a prompt beyond the cache, or many samples with a constraint that
        takes long to compile; QueueFullError; EngineClosedError.
        """
        params = SamplingParams() if params is None else params
        require(isinstance(params, SamplingParams), _OP, "params", "a SamplingParams or None", params)
        require(params.num_beams == 1, _OP, "num_beams", "1: a search runs in `generate`", params.num_beams)
        count = params.num_return_sequences
        self._require_room(count)
        ids = prompt_ids(self.model, prompt)
        room = self.capacity - len(ids)
        require(room > 0, _OP, "prompt", f"shorter than the {self.capacity} tokens that the cache has room for", f"{len(ids)}")
        params = replace(params, max_new_tokens=min(room, params.max_new_tokens or room))
        maker = self._new_sampler(spelled)
        rows = _new_rows(maker, params, ids)
        with self._wake:
            self._require_room(count)  # others may have come meanwhile
            ticket = Ticket(self, self._taken, ids, rows, listener)
            self._taken += 1
            self._live += count
            self._incoming.append(ticket)
            self._wake.notify()
        return ticket

    def wake(self) -> None:
        """Lets the thread look around: a ticket has been cancelled."""
        with self._wake:
            self._wake.notify()

    def close(self, seconds: float = 0.0) -> None:
        """Takes no more requests, and ends the thread once all rows have ended: after so many seconds those that go on are
        cancelled. Harmless when called again."""
        with self._wake:
            self._closing = True
            self._deadline = time.monotonic() + seconds
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()
            atexit.unregister(self.close)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def require_possible(self, count: int) -> None:
        """Raises ValueError for more rows at once than ever run and wait."""
        require(count <= self._most, _OP, "n", f"at most {self._most}, for all prompts together", count)

    def _require_room(self, count: int) -> None:
        if self._closing:
            raise EngineClosedError("the server is stopping, and takes no more requests")
        self.require_possible(count)
        if self._live + count > self._most:
            seconds = self._row_seconds * (self._live + count - self._most) / self.max_rows
            raise QueueFullError(self._live - self.max_rows, max(1, min(60, round(seconds))))

    def _new_sampler(self, spelled: Collection[str] = ()) -> Sampler:
        vocab, ends = self.model.config.vocab_size, self.model.tokenizer.end_token_ids
        return Sampler([], vocab_size=vocab, eos_token_id=ends, token_bytes=self._token_bytes(frozenset(spelled)))

    def _token_bytes(self, spelled: frozenset[str]) -> Callable[[int], bytes]:
        """Token id -> bytes of text, those of the control tokens `spelled` being their names; always the same function."""
        tokenizer = self.model.tokenizer
        if not spelled:
            return tokenizer.token_bytes
        if spelled not in self._spelling:
            shown = {i: tokenizer.token(i).encode() for i in tokenizer.special - tokenizer.end_token_ids}
            shown = {i: name for i, name in shown.items() if name.decode() in spelled}
            self._spelling[spelled] = lambda token: shown.get(token) or tokenizer.token_bytes(token)
        return self._spelling[spelled]

    def _new_batch(self) -> Batch:
        return Batch(self.model, self._new_sampler(), Beside(self.max_rows))

    def _loop(self) -> None:
        with use_threads(self.model.threads):
            while self._wait():
                texts: dict[int, str] = {}
                try:
                    self._end_cancelled(texts)
                    texts |= {key: texts.get(key, "") + text for key, text in self._batch.advance()}
                    self.passes += 1
                except Exception as error:  # of nobody's row: those that it hit end, the server goes on
                    self._fail(error)
                self._tell(texts)

    def _wait(self) -> bool:
        """Waits for something to do, and takes in what has come; False at the end."""
        while not (self._incoming or self._tickets or self._closing) and self.model.cache.prepare(_IDLE_SLABS):
            pass
        with self._wake:
            while not (self._incoming or self._tickets):
                if self._closing:
                    return False
                self._wake.wait()
            new, self._incoming = self._incoming, []
        for ticket in new:
            ticket.keys = [self._batch.add(row) for row in ticket.rows]
        self._tickets += new
        return True

    def _end_cancelled(self, texts: dict[int, str]) -> None:
        late = self._deadline is not None and time.monotonic() >= self._deadline
        for ticket in self._tickets:
            if late or ticket.cancelled.is_set():
                texts |= {key: self._batch.end(key, "cancelled") for key in ticket.keys}

    def _fail(self, error: Exception) -> None:
        self.failures += 1
        _LOG.exception("a pass failed, and with it all rows")
        for ticket in self._tickets:
            for row in ticket.rows:
                if not row.reason:
                    row.fail(error)
        self._batch.close()
        self._batch = self._new_batch()

    def _tell(self, texts: dict[int, str]) -> None:
        news = [
            (ticket, gain)
            for ticket in self._tickets
            for gain in ticket.news(lambda sample, keys=ticket.keys: texts.get(keys[sample], ""))  # type: ignore[misc]
        ]
        ended = [row for ticket, gain in news if gain.reason for row in [ticket.rows[gain.sample]]]
        if ended:
            now = time.monotonic()
            for row in ended:
                self._row_seconds += 0.1 * (now - row.started - self._row_seconds)
            with self._wake:
                self._live -= len(ended)
            self._tickets = [ticket for ticket in self._tickets if not ticket.done]
        if news:
            try:
                self._deliver(news)
            except Exception:  # whoever listens must not stop the others
                _LOG.exception("what was gained could not be delivered")


def _new_rows(maker: Sampler, params: SamplingParams, ids: Sequence[int]) -> list[Row]:
    """The row of each sample. Each compiles its constraint for itself, so that of a costly one there may be few."""
    begun, rows = time.thread_time(), list[Row]()
    for sample in params.samples():
        if rows and time.thread_time() - begun > MOST_COMPILING:
            rule = f"at most {len(rows)} with a constraint that takes so long to compile"
            refuse(_OP, "num_return_sequences", rule, params.num_return_sequences)
        rows.append(maker.new_row(sample, ids))
    return rows


def _to_tickets(news: list[tuple[Ticket, Gain]]) -> None:
    for ticket, gain in news:
        ticket.gains.put(gain)
