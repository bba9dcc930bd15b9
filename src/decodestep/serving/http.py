"""The server of models, as an ASGI application."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from decodestep.errors import ModelError
from decodestep.generation.engine_request import Delta, EngineRequest
from decodestep.sampling.params import SamplingParams
from decodestep.serving import bodies
from decodestep.serving.admission import Admission
from decodestep.serving.answer import Answer
from decodestep.serving.endpoint import Endpoint, openai_error
from decodestep.serving.endpoints import find_endpoints
from decodestep.serving.errors import HttpError, http_error, refusal
from decodestep.serving.event_stream import EventStream, until_left
from decodestep.serving.jobs import Job
from decodestep.serving.metrics import Metrics
from decodestep.serving.served_models import ModelUse, ServedModel, ServedModels

if TYPE_CHECKING:
    from decodestep.models import Model

T = TypeVar("T")
# Reads a request: the model, the body, the most characters of its texts, and the defaults of the sampling fields it leaves out.
BuildJob = Callable[["Model", dict[str, Any], int, SamplingParams], Job]
MAX_BODY = 4 * 2**20  # bytes
_LARGE = 2**16  # bytes from which a body is parsed on a worker thread
_LOG = logging.getLogger("decodestep.serving")


class Server:
    """Serves models; `app` is the ASGI application.

    keys: API keys, one of which a request must send; empty for no authentication. hosts: the names by which requests may call
    the server, besides addresses and names without a dot; None for any. origins: of other web pages that may call the API.
    max_body: the largest body, in bytes. log_prompts: whether texts are logged. ignore_unknown_fields: of completions, which
    refuse them otherwise.
    loading: as `ServedModels.start` returns it.

    The other attributes and methods are for endpoints. started: when, in seconds since 1970.
    """

    def __init__(
        self,
        models: ServedModels,
        *,
        keys: Sequence[str] = (),
        hosts: Sequence[str] | None = None,
        origins: Sequence[str] = (),
        max_body: int = MAX_BODY,
        log_prompts: bool = False,
        ignore_unknown_fields: bool = False,
    ) -> None:
        self.models = models
        self.metrics = Metrics(models)
        self.started = int(time.time())
        self.ignore_unknown_fields = ignore_unknown_fields
        self._admission = Admission(keys, hosts, origins)
        self._max_body, self._log_prompts = max_body, log_prompts
        self._loop: asyncio.AbstractEventLoop | None = None
        self._workers = ThreadPoolExecutor(8, "decodestep-requests")  # templates, tokenizers, constraints: some take seconds
        cors = Middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"])
        self.app = Starlette(
            routes=[route for endpoint in find_endpoints() for route in self._routes(endpoint)],
            middleware=[cors] if origins else [],
            exception_handlers={HTTPException: self._routing_error},
        )
        self.app.router.redirect_slashes = False  # before all checks; and clients send no body to another place
        self.loading = models.start(self._deliver)

    def close(self) -> None:
        """Ends the engines and the worker threads. Nothing may be asked after that, not even what the engines refuse."""
        self.models.close()
        self._workers.shutdown(wait=False)

    async def read_body(self, request: Request) -> dict[str, Any]:
        """The object that a request's body is. Raises HttpError."""
        data = await bodies.receive(request, self._max_body)
        return await self.in_worker(bodies.parse, data) if len(data) > _LARGE else bodies.parse(data)

    async def in_worker(self, function: Callable[..., T], *arguments: object) -> T:
        """The result of a slow function, run on a worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, function, *arguments)

    async def use(self, body: Mapping[str, Any]) -> ModelUse:
        """A use of the model that a request's body names, once it is loaded; it must be released. Raises HttpError."""
        name = body.get("model")
        if not isinstance(name, str | None):
            raise refusal("model", "a string")
        asked = self.models.ask(name)
        try:
            return await asyncio.wrap_future(asked)
        except ModelError as error:
            raise HttpError(503, str(error), code="model_not_loaded") from None
        except asyncio.CancelledError:
            asked.add_done_callback(_release)
            raise

    async def complete(self, request: Request, build_job: BuildJob) -> Response:
        """The response to a request for a generated answer: whole, or a stream of events."""
        body = await self.read_body(request)
        use = await self.use(body)
        try:
            answer = await self.in_worker(self._begin, use.served, build_job, body, request.scope["path"])
        except BaseException:
            use.release()
            raise

        async def close() -> None:
            try:
                await answer.close()
            finally:
                use.release()

        if answer.stream:
            return EventStream(answer.events(), close)
        done, left = asyncio.ensure_future(answer.ended()), asyncio.ensure_future(until_left(request.receive))
        try:
            await asyncio.wait((done, left), return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                raise HttpError(499, "the client has disconnected", code="cancelled")
            await done
            whole = await asyncio.to_thread(answer.whole)  # not on a worker, all of which may compile constraints
            return Response(whole, media_type="application/json")
        finally:
            done.cancel()
            left.cancel()
            await close()
            del done  # which holds the exception, whose frames hold this one

    def _begin(self, served: ServedModel, build_job: BuildJob, body: dict[str, Any], route: str) -> Answer:
        """Reads the request and hands it to the engine. On a worker thread."""
        job = build_job(served.model, body, served.most_characters, served.default_params)
        answer = Answer(served, job, self.metrics, route=route, texts=body if self._log_prompts else None)
        answer.begin()
        return answer

    def _deliver(self, deltas: list[tuple[EngineRequest, Delta]]) -> None:
        """Passes the deltas of a pass to the event loop. On an engine's thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_distribute, deltas)

    def _routes(self, endpoint: Endpoint) -> list[Route]:
        """The routes of a path, which may end with a slash too: clients put it together from parts."""

        async def answer(request: Request) -> Response:
            self._loop = asyncio.get_running_loop()
            try:
                self._admission.admit(request, endpoint)
            except Exception as error:
                response = await self._refused(request, error, endpoint.error_response)
            else:
                response = await self._answered(request, endpoint)
            self.metrics.requests.labels(endpoint.path, str(response.status_code)).inc()
            return response

        path = endpoint.path
        return [Route(each, answer, methods=[endpoint.method]) for each in dict.fromkeys((f"{path.rstrip('/')}/", path))]

    async def _answered(self, request: Request, endpoint: Endpoint) -> Response:
        try:
            return await endpoint.answer(self, request)
        except Exception as error:
            return endpoint.error_response(_logged(error))

    async def _refused(self, request: Request, error: Exception, error_response: Callable[[HttpError], Response]) -> Response:
        """The response to a request whose body has not been read. It is read now: a client may read nothing before it has sent
        all, unless it asks first whether it should send."""
        response = error_response(_logged(error))
        if "expect" in request.headers:
            response.headers["connection"] = "close"  # what comes next may be the body or another request
            return response
        try:
            await bodies.receive(request, 0)
        except HttpError as unread:
            response.headers.update(unread.headers)
        return response

    async def _routing_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        self.metrics.requests.labels("other", str(error.status_code)).inc()  # not the path: clients would make the labels
        message = f"{request.method} {request.scope['path']}: {error.detail}"
        failure = HttpError(error.status_code, message, **(error.headers or {}))
        return await self._refused(request, failure, openai_error)


def _logged(error: Exception) -> HttpError:
    """The error to answer with; what the client cannot help is in the log."""
    failure = http_error(error)
    if failure.status == 500:
        _LOG.error("a request failed", exc_info=error)
    return failure


def _release(asked: Future[ModelUse]) -> None:
    """Releases a use that nobody waits for any more."""
    if not asked.cancelled() and asked.exception() is None:
        asked.result().release()


def _distribute(deltas: list[tuple[EngineRequest, Delta]]) -> None:
    for request, delta in deltas:
        if request.listener is not None:
            request.listener(delta)
