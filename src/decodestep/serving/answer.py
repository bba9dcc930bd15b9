"""The answer to a request: hands its job to the engine, and what the rows add to the writer of its API."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from decodestep.errors import RequestError
from decodestep.generation.engine import COMPILE_SECONDS
from decodestep.sampling.contradictions import languages_of
from decodestep.serving.choices import usage_object
from decodestep.serving.errors import HttpError, http_error, refusal, too_long

if TYPE_CHECKING:
    from decodestep.generation.engine_request import Delta, EngineRequest
    from decodestep.sampling.row import Row
    from decodestep.serving.jobs import Job
    from decodestep.serving.metrics import Metrics
    from decodestep.serving.served_models import ServedModel

_LOG = logging.getLogger("decodestep.serving.requests")
PING_SECONDS = 10.0  # without an event before the first token of a stream
# Log-probabilities of an answer, which is held whole: of its prompts, about 300 MB of them; of its tokens, which come one by
# one, as many as a context of 131072 tokens has with OpenAI's largest top_logprobs, 20, and some more.
_MAX_PROMPT_LOGPROBS, _MAX_TOKEN_LOGPROBS = 2**20, 2**22


class Answer:
    """The answer to a job, of n samples for each of its prompts.

    route: for the log. texts: the request as it is logged, with the completions; None to log no texts.
    stream: whether `events` are wanted in place of `whole`.

    The deltas of a pass are put into its queue on the event loop; its methods are called by the request's task.
    """

    def __init__(self, served: ServedModel, job: Job, metrics: Metrics, *, route: str, texts: object) -> None:
        self.stream = job.stream
        self._engine, self._name = served.engine, served.name
        self._job, self._metrics, self._route, self._texts = job, metrics, route, texts
        self._deltas: asyncio.Queue[tuple[int, Delta]] = asyncio.Queue()
        self._begun = asyncio.Event()  # once there has been a delta
        self._started = time.monotonic()
        self._first_token_s: float | None = None  # from the start; None before it
        self._requests: list[EngineRequest] = []
        self._running = 0  # how many samples have not ended
        self._recorded = False

    def begin(self) -> None:
        """Submits the prompts to the engine. Raises as `Engine.submit` does, after cancelling those already submitted, and
        HttpError for its ValueErrors."""
        job, engine, began = self._job, self._engine, time.thread_time()
        count, constrained = job.params.num_return_sequences, bool(languages_of(job.params))
        try:
            engine.require_possible(count * len(job.prompts))
            self._require_short_prediction()
            for i, prompt in enumerate(job.prompts):
                if i and constrained and time.thread_time() - began > COMPILE_SECONDS:
                    raise refusal("prompt", f"a list of at most {i} with a constraint that takes this long to compile")
                listener = partial(_enqueue, self._deltas, self._begun, i * count)  # a method would make a reference cycle
                request = engine.submit(
                    prompt, job.params, listener=listener, spelled=job.spelled, marks=job.marks, only_scored=job.only_scored
                )
                self._requests.append(request)
                self._require_few_logprobs()
        except RequestError as error:
            self.cancel()
            raise job.refusal(error) from None
        except BaseException:
            self.cancel()
            raise
        self._writer = job.build_writer(self._name, engine.model.tokenizer, self._requests)
        self._running = len(self._rows)

    def _require_short_prediction(self) -> None:
        """Refuses a prediction that no answer could repeat: the engine's thread reads it for each row."""
        text, room = self._job.params.prediction, self._engine.capacity
        if text and len(self._engine.model.tokenizer.encode(text)) > room:
            raise too_long("prediction", f"prediction must have at most the {room} tokens of the context")

    def _require_few_logprobs(self) -> None:
        """Refuses more log-probabilities than an answer may hold, of the prompts submitted so far and of what follows them."""
        params = self._job.params
        prompt = params.num_return_sequences * sum(len(request.prompt_ids) for request in self._requests)
        if params.prompt_logprobs is not None and prompt * (1 + params.prompt_logprobs) > _MAX_PROMPT_LOGPROBS:
            rule = f"such that n times the prompts' tokens times 1 + logprobs is at most {_MAX_PROMPT_LOGPROBS} with echo"
            raise refusal("logprobs", rule)
        tokens = sum(row.params.max_new_tokens or 0 for request in self._requests for row in request.rows)
        if params.logprobs is not None and tokens * (1 + params.logprobs) > _MAX_TOKEN_LOGPROBS:
            factors = "max_tokens times n times the number of prompts times 1 + (top_)logprobs"
            rule = f"such that {factors} is at most {_MAX_TOKEN_LOGPROBS}"
            raise refusal("logprobs", rule)

    def cancel(self) -> None:
        for request in self._requests:
            if not request.done:
                request.cancel()

    async def close(self) -> None:
        """Ends the rows that still run, as nobody reads them. The metrics and the log tell of them too."""
        if self._recorded:
            return
        self.cancel()
        await self._take_all()
        with suppress(HttpError):
            self._raise_failure()

    async def ended(self) -> None:
        """Waits until all rows have ended. Raises HttpError if a row has failed."""
        await self._take_all()
        self._raise_failure()

    def whole(self) -> bytes:
        """The response, once all rows have ended. Slow with the log-probabilities of many tokens."""
        return self._writer.whole()

    async def events(self) -> AsyncIterator[bytes]:
        """The server-sent events; deltas that are already queued are sent together."""
        if opening := self._writer.opening():
            yield opening
        while not await self._has_begun():
            if ping := self._writer.ping():
                yield ping
        while self._running:
            deltas = [await self._next()]
            while not self._deltas.empty():
                deltas.append(await self._next())
            if self._job.params.prompt_logprobs is None:
                data = self._written(deltas)
            else:  # those of a long prompt take seconds, in which the event loop serves others
                data = await asyncio.to_thread(self._written, deltas)
            if not self._running:
                self._record()
            if data:
                yield data
        try:
            self._raise_failure()
        except HttpError as error:
            yield self._writer.failure(error)
            return
        yield self._writer.closing()

    async def _has_begun(self) -> bool:
        """Waits for the first delta, as long as a client may wait for a sign of life."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._begun.wait(), PING_SECONDS)
        return self._begun.is_set()

    async def _take_all(self) -> None:
        """Takes what comes until all rows have ended."""
        while self._running:
            index, delta = await self._next()
            self._writer.take(index, delta)
        self._record()

    async def _next(self) -> tuple[int, Delta]:
        index, delta = await self._deltas.get()
        if self._first_token_s is None and delta.token is not None:
            self._first_token_s = time.monotonic() - self._started
            self._metrics.first_token_seconds.labels(self._name).observe(self._first_token_s)
        if delta.reason:
            self._running -= 1
            self._metrics.ended.labels(self._name, delta.reason).inc()
        return index, delta

    def _written(self, deltas: list[tuple[int, Delta]]) -> bytes:
        return b"".join(self._writer.events(index, delta) for index, delta in deltas)

    @property
    def _rows(self) -> list[Row]:
        return [row for request in self._requests for row in request.rows]

    def _raise_failure(self) -> None:
        rows = self._rows
        errors = [row.error for row in rows if row.error is not None]
        for row in rows:
            row.error = None  # its frames hold the row: all of it would stay until the garbage is collected
        if errors:
            raise http_error(errors[0], self._job.field_of) from errors[0]

    def _record(self) -> None:
        """Adds the request, whose rows have all ended, to the metrics and the log."""
        self._recorded = True
        used, seconds, metrics = self._writer.usage, time.monotonic() - self._started, self._metrics
        metrics.prompt_tokens.labels(self._name).inc(used.prompt)
        metrics.tokens.labels(self._name).inc(used.completion)
        metrics.drafted_tokens.labels(self._name).inc(used.drafted)
        metrics.accepted_tokens.labels(self._name).inc(used.accepted)
        metrics.request_seconds.labels(self._name).observe(seconds)
        entry = {
            "id": self._writer.id,
            "route": self._route,
            "model": self._name,
            "stream": self._job.stream,
            **usage_object(used, predicted=self._job.params.prediction is not None),
            "first_token_s": None if self._first_token_s is None else round(self._first_token_s, 4),
            "seconds": round(seconds, 4),
            "ended_by": [row.reason for row in self._rows],
        }
        if self._texts is not None:
            entry |= {"request": self._texts, "completions": [sample.text for sample in self._writer.samples]}
        _LOG.info(json.dumps(entry, ensure_ascii=False))


def _enqueue(deltas: asyncio.Queue[tuple[int, Delta]], begun: asyncio.Event, first: int, delta: Delta) -> None:
    deltas.put_nowait((first + delta.sample, delta))
    begun.set()
