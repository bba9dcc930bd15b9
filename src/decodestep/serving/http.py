"""An OpenAI-compatible API of a model, as an ASGI application."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import resources
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from decodestep._base.checks import ids_below
from decodestep.generation.drafts import Draft
from decodestep.generation.engine import Engine
from decodestep.generation.engine_request import Delta, EngineRequest
from decodestep.sampling.params import SamplingParams
from decodestep.serving.answer import Answer
from decodestep.serving.errors import HttpError, http_error, refusal, unknown_field
from decodestep.serving.event_stream import EventStream, until_left
from decodestep.serving.metrics import CONTENT_TYPE, Metrics
from decodestep.serving.request_fields import require_short
from decodestep.serving.requests import Job, chat_job, completion_job, max_characters, parse_body
from decodestep.serving.responses import json_bytes

if TYPE_CHECKING:
    from decodestep.models import Model

T = TypeVar("T")
JobOf = Callable[[dict[str, Any], int], Job]
MAX_BODY = 4 * 2**20  # bytes
BODY_SECONDS = 30.0
_MAX_DISCARDED = 2**26  # bytes of a too large body that are read before the connection is closed
_LARGE = 2**16  # bytes from which a body is parsed on a worker thread
_MAX_IDS = 2**16  # of /detokenize
_OPEN = ("/", "/health")  # need no key: they reveal nothing about requests
_LOG = logging.getLogger("decodestep.serving")


class _Json(JSONResponse):
    def render(self, content: object) -> bytes:
        return json_bytes(content, allow_nan=False)


class Server:
    """Serves one model; `app` is the ASGI application.

    name: of the model, in responses. keys: API keys, one of which a request must send; empty for no authentication. hosts: the
    names by which requests may call the server, besides addresses and names without a dot; None for any. origins: of other web
    pages that may call the API. max_body: the largest body, in bytes. log_prompts: whether texts are logged. draft: as for
    `Engine`.
    default_params: of temperature, top_k, top_p, min_p, repetition_penalty and do_sample, for what a request leaves out of
    them; None for the model's own.
    """

    def __init__(
        self,
        model: Model,
        *,
        name: str,
        keys: Sequence[str] = (),
        hosts: Sequence[str] | None = None,
        origins: Sequence[str] = (),
        max_rows: int = 64,
        max_waiting: int = 256,
        max_body: int = MAX_BODY,
        log_prompts: bool = False,
        draft: Draft = "auto",
        default_params: SamplingParams | None = None,
    ) -> None:
        self.model, self.name = model, name
        self.engine = Engine(model, max_rows=max_rows, max_waiting=max_waiting, deliver=self._deliver, draft=draft)
        self._keys = [key.encode() for key in keys]
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self._origins = tuple(origins)
        self._max_body, self._log_prompts = max_body, log_prompts
        self._max_characters = max_characters(model)
        self._metrics = Metrics(self.engine)
        self._started = int(time.time())
        self._loop: asyncio.AbstractEventLoop | None = None
        self._workers = ThreadPoolExecutor(8, "decodestep-requests")  # templates, tokenizers, constraints: some take seconds
        cors = Middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"])
        defaults = model.default_params if default_params is None else default_params
        chats, completions = partial(chat_job, model, defaults=defaults), partial(completion_job, defaults=defaults)
        self.app = Starlette(
            routes=[
                *self._routes("/v1/chat/completions", partial(self._complete, chats), "POST"),
                *self._routes("/v1/completions", partial(self._complete, completions), "POST"),
                *self._routes("/v1/models", self._models, "GET"),
                *self._routes("/v1/models/{id:path}", self._one_model, "GET"),
                *self._routes("/tokenize", self._tokenize, "POST"),
                *self._routes("/detokenize", self._detokenize, "POST"),
                *self._routes("/health", self._health, "GET"),
                *self._routes("/metrics", self._metrics_text, "GET"),
                *self._routes("/", self._page, "GET"),
            ],
            middleware=[cors] if origins else [],
            exception_handlers={HTTPException: self._routing_error},
        )
        self.app.router.redirect_slashes = False  # before all checks; and clients send no body to another place

    def close(self) -> None:
        """Ends the engine and the worker threads. Nothing may be asked after that, not even what the engine refuses."""
        self.engine.close()
        self._workers.shutdown(wait=False)

    def _routes(self, path: str, handler: Callable[[Request], Awaitable[Response]], method: str) -> list[Route]:
        """The routes of a path, which may end with a slash too: clients put it together from parts."""

        async def answer(request: Request) -> Response:
            self._loop = asyncio.get_running_loop()
            try:
                self._admit(request, path)
            except Exception as error:
                response = await self._refused(request, error)
            else:
                response = await self._answered(request, handler)
            self._metrics.requests.labels(path, str(response.status_code)).inc()
            return response

        return [Route(each, answer, methods=[method]) for each in dict.fromkeys((f"{path.rstrip('/')}/", path))]

    async def _answered(self, request: Request, handler: Callable[[Request], Awaitable[Response]]) -> Response:
        try:
            return await handler(request)
        except Exception as error:
            return self._error_response(error)

    async def _refused(self, request: Request, error: Exception) -> Response:
        """The response to a request whose body has not been read. It is read now: a client may read nothing before it has sent
        all, unless it asks first whether it should send."""
        response = self._error_response(error)
        if "expect" in request.headers:
            response.headers["connection"] = "close"  # what comes next may be the body or another request
            return response
        try:
            await self._received(request, 0)
        except HttpError as unread:
            response.headers.update(unread.headers)
        return response

    def _admit(self, request: Request, path: str) -> None:
        """Refuses requests by a wrong name, those without a valid key, and those from pages of other origins.

        path: the route's. `request.url` is made from the Host header too, whose sender must not choose what needs no key.
        """
        host = request.headers.get("host", "")  # which a browser always sends
        if self._hosts is not None and host and not (_is_local(host) or _host_name(host) in self._hosts):
            raise HttpError(403, f"this server may not be called {host} (--allowed-host)", code="host")
        if path not in _OPEN:
            self._require_key(request.headers)
        if request.method == "POST":
            self._require_origin(request.headers, host)
            _require_plain_json(request.headers)

    def _require_key(self, headers: Headers) -> None:
        sent = headers.get("authorization", "").encode("latin-1")  # as it came: clients send a key in UTF-8
        scheme, _, given = sent.strip().partition(b" ")
        given = given.strip() if scheme.lower() == b"bearer" else b""
        matches = [hmac.compare_digest(given, key) for key in self._keys]  # all of them, against timing attacks
        if self._keys and not any(matches):
            raise HttpError(401, "a valid API key is needed: Authorization: Bearer KEY", code="invalid_api_key")

    def _require_origin(self, headers: Headers, host: str) -> None:
        """host: by which a page of this server calls it."""
        origin = headers.get("origin")
        own = (None, f"http://{host}", f"https://{host}", *self._origins)
        if origin not in own and "*" not in self._origins:
            raise HttpError(403, f"pages from {origin} may not call this server (--cors-origin)", code="origin")

    def _error_response(self, error: Exception) -> Response:
        failure = http_error(error)
        if failure.status == 500:
            _LOG.error("a request failed", exc_info=error)
        return _Json(failure.body(), failure.status, failure.headers)

    async def _routing_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        self._metrics.requests.labels("other", str(error.status_code)).inc()  # not the path: clients would make the labels
        message = f"{request.method} {request.scope['path']}: {error.detail}"
        return await self._refused(request, HttpError(error.status_code, message, **(error.headers or {})))

    async def _body(self, request: Request) -> dict[str, Any]:
        data, size = await self._received(request, self._max_body)
        if size > self._max_body:
            raise self._too_large()
        return await self._in_worker(parse_body, data) if size > _LARGE else parse_body(data)

    async def _received(self, request: Request, most: int) -> tuple[bytes, int]:
        """A body, or the beginning of one that has more than `most` bytes, and its size.

        Raises HttpError for one that is not read to its end; the connection is then closed, which would read on for ever.
        """
        data = bytearray()
        size = 0

        async def read() -> None:
            nonlocal size
            async for piece in request.stream():
                size += len(piece)
                if size <= most:
                    data.extend(piece)
                elif size > _MAX_DISCARDED:  # a smaller body is read to its end, so that the client reads the response
                    raise self._too_large(connection="close")

        try:
            await asyncio.wait_for(read(), BODY_SECONDS)
        except ClientDisconnect:
            raise HttpError(499, "the client has disconnected", code="cancelled") from None
        except asyncio.TimeoutError:
            message = f"the body was not received within {BODY_SECONDS:.0f} s"
            raise HttpError(408, message, code="timeout", connection="close") from None
        return bytes(data), size

    def _too_large(self, **headers: str) -> HttpError:
        return HttpError(413, f"the body must be at most {self._max_body} bytes", code="body_too_large", **headers)

    async def _in_worker(self, function: Callable[..., T], *arguments: object) -> T:
        """The result of a slow function, run on a worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, function, *arguments)

    async def _complete(self, job_of: JobOf, request: Request) -> Response:
        body = await self._body(request)
        answer = await self._in_worker(self._begin, job_of, body, request.scope["path"])
        if body.get("stream"):
            return EventStream(answer.events(), answer.close)
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
            await answer.close()
            del done  # which holds the exception, whose frames hold this one

    def _begin(self, job_of: JobOf, body: dict[str, Any], route: str) -> Answer:
        """Reads the request and hands it to the engine. On a worker thread."""
        job = job_of(body, self._max_characters)
        texts = body if self._log_prompts else None
        answer = Answer(self.engine, job, self._metrics, name=self.name, route=route, texts=texts)
        answer.begin()
        return answer

    def _deliver(self, deltas: list[tuple[EngineRequest, Delta]]) -> None:
        """Passes the deltas of a pass to the event loop. On the engine's thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_distribute, deltas)

    async def _models(self, _: Request) -> Response:
        return _Json({"object": "list", "data": [self._model_object()]})

    async def _one_model(self, request: Request) -> Response:
        if request.path_params["id"] != self.name:
            raise HttpError(404, f"the only model is {self.name!r}", param="model", code="model_not_found")
        return _Json(self._model_object())

    def _model_object(self) -> dict[str, Any]:
        config = self.model.config
        sizes = {"context_length": self.engine.capacity, "vocab_size": config.vocab_size}
        return {"id": self.name, "object": "model", "created": self._started, "owned_by": "decodestep", **sizes}

    async def _tokenize(self, request: Request) -> Response:
        body = await self._body(request)
        for name in body.keys() - {"content", "prompt", "model"}:
            raise unknown_field(name)
        given = [body[name] for name in ("content", "prompt") if body.get(name) is not None]
        if len(given) != 1 or not isinstance(given[0], str):
            raise refusal("content", "a string, and prompt omitted")
        [text] = given
        require_short([text], self._max_characters, "content")
        ids = await self._in_worker(_ids, self.model, text)
        return _Json({"tokens": ids, "count": len(ids)})

    async def _detokenize(self, request: Request) -> Response:
        body = await self._body(request)
        for name in body.keys() - {"tokens", "count", "model"}:  # what /tokenize answers is taken as it is
            raise unknown_field(name)
        ids, vocab = body.get("tokens"), self.model.config.vocab_size
        if not isinstance(ids, list) or len(ids) > _MAX_IDS or ids_below(vocab, ids) is None:
            raise refusal("tokens", f"at most {_MAX_IDS} token ids in [0, {vocab})")
        return await self._in_worker(_text_response, self.model, ids)

    async def _health(self, _: Request) -> Response:
        self.engine.require_alive()
        return _Json({"status": "ok", "model": self.name})

    async def _metrics_text(self, _: Request) -> Response:
        return Response(self._metrics.text(), media_type=CONTENT_TYPE)

    async def _page(self, _: Request) -> Response:
        page = (resources.files("decodestep.serving") / "page.html").read_bytes()
        policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
        return Response(page, media_type="text/html", headers={"content-security-policy": policy})


def _require_plain_json(headers: Headers) -> None:
    media_type, _, _ = headers.get("content-type", "").partition(";")
    if media_type.strip().lower() != "application/json":
        raise HttpError(415, "content-type must be application/json", code="content_type")
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise HttpError(415, "content-encoding must be identity", code="content_encoding", Accept_Encoding="identity")


def _host_name(host: str) -> str:
    """The part of a Host header before the port, as browsers write it."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:  # of brackets
        return ""


def _is_local(host: str) -> bool:
    """Whether a Host header has an address or a name without a dot: no site of the internet has such a name."""
    name = _host_name(host)
    try:
        return bool(ip_address(name))
    except ValueError:
        return name != "" and "." not in name


def _distribute(deltas: list[tuple[EngineRequest, Delta]]) -> None:
    for request, delta in deltas:
        if request.listener is not None:
            request.listener(delta)


def _ids(model: Model, text: str) -> list[int]:
    """The token ids of a text, which may be empty or somewhat longer than the context."""
    try:
        return model.tokenizer.encode(text)
    except UnicodeEncodeError:
        raise refusal("content", "valid Unicode, without lone surrogates") from None


def _text_response(model: Model, ids: list[int]) -> Response:
    text = model.tokenizer.spell(ids)
    return _Json({"content": text, "prompt": text})
