"""``decodestep serve``: an OpenAI-compatible HTTP server for a model."""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decodestep._base.checks import Phrase, refuse, require
from decodestep._base.extras import extra
from decodestep.cli.options import (
    add_draft,
    add_named_model,
    add_sampling_defaults,
    load,
    load_draft,
    name_model,
    read_option_file,
)
from decodestep.decoding.kv_cache import PAGE
from decodestep.errors import ModelError, TemplateProcessError
from decodestep.models import hub
from decodestep.sampling.params import SamplingParams

if TYPE_CHECKING:
    import uvicorn

    from decodestep.models import Model
    from decodestep.serving.http import Server

_GRACE = 10.0  # seconds for completions to finish after SIGTERM
_READING = 5.0  # seconds for clients to read what was written for them after that
# A connection without requests is closed after these seconds: later than by clients and proxies, which keep one for 60 at most
# as a rule, since what is sent on a connection while it is being closed gets no answer.
_IDLE = 75
_QUEUE = 2048  # connections that wait to be accepted
_WAITING_SECONDS = 60.0  # between two lines in the log that say that connections wait for descriptors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_named_model(parser)
    add("--host", default="127.0.0.1", help="the address to listen on; 0.0.0.0 for all networks [%(default)s]")
    add("--port", type=int, default=8080, help="0 for a free one [%(default)s]")
    add("--max-rows", "--parallel", type=int, default=64, metavar="N", help="completions that run together [%(default)s]")
    add(
        "--max-waiting",
        "--max-queue",
        type=int,
        default=256,
        metavar="N",
        help="completions that may wait; others get 429 [%(default)s]",
    )
    add("--api-key-file", metavar="FILE", help="file of keys, one per line; requests must send one of them")
    text = (
        "name by which requests may call the server, as a proxy does; * for any [those without a dot, on loopback without keys]"
    )
    add("--allowed-host", action="append", default=[], metavar="NAME", help=text)
    add("--cors-origin", action="append", default=[], metavar="ORIGIN", help="origin whose pages may call the API; * for all")
    add_sampling_defaults(parser)
    add_draft(parser)
    add("--log-prompts", action="store_true", help="write requests and answers to the log")
    add("--grace", type=float, default=_GRACE, metavar="SECONDS", help="time for rows to finish after SIGTERM [%(default)s]")


def run(options: argparse.Namespace) -> int:
    with extra("serve"):
        import uvicorn  # noqa: F401 - a missing package is reported before the model is loaded

        from decodestep.serving.http import Server
    keys = _keys(options)
    _check(options)
    name_model(options)
    _allow_files()
    listening = _listen(options.host, options.port)  # before the model is loaded, so that a port in use is reported at once
    host, port = listening.getsockname()[:2]
    started = time.monotonic()
    _say(f"loading {options.model} ...")
    draft = load_draft(options)
    model = load(options)
    name = _default_name(options.model)
    _check_template(options, model)
    _say(f"{name} ({model.config.name}): {model.decoder.description}, loaded in {time.monotonic() - started:.1f} s")
    _say(f"cache: {model.cache.pages * PAGE} tokens, of all completions together")
    logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
    sys.setswitchinterval(5e-4)  # the engine's thread must not wait 5 ms for the one that writes to clients
    server = Server(
        model,
        name=name,
        keys=keys,
        hosts=_hosts(options, host, keys),
        origins=options.cors_origin,
        max_rows=options.max_rows,
        max_waiting=options.max_waiting,
        log_prompts=options.log_prompts,
        draft=draft,
        default_params=model.default_params if options.sampling_defaults == "model" else SamplingParams(),
    )
    shown = f"[{host}]" if ":" in host else host
    with_keys = "with an API key" if keys else "without API keys"
    _say(f"listening on http://{shown}:{port} {with_keys}: the chat page at /, OpenAI's interface at /v1")
    try:
        _uvicorn_server(server, options.grace).run(sockets=[listening])
    finally:
        server.close()
    _say("stopped")
    return 0


def _check(options: argparse.Namespace) -> None:
    require(0 <= options.port < 2**16, "serve", "port", "in [0, 65535]", options.port)
    require(options.max_rows >= 1, "serve", "max-rows", ">= 1", options.max_rows)
    require(options.max_waiting >= 0, "serve", "max-waiting", ">= 0", options.max_waiting)
    require(options.grace >= 0, "serve", "grace", ">= 0", options.grace)
    for origin in options.cors_origin:
        require(_is_origin(origin), "serve", "cors-origin", "*, null, or an origin such as https://example.org:8000", origin)
    for name in options.allowed_host:
        require(_is_allowed_host(name), "serve", "allowed-host", "*, or a name without a port such as example.org", name)


def _check_template(options: argparse.Namespace, model: Model) -> None:
    """Refuses a template that renders no message: every request for a chat would be told so."""
    if options.chat_template is None:
        return
    try:
        wrong = "" if model.chat_prompt([{"role": "user", "content": "Hello"}]) else "it renders nothing"
    except TemplateProcessError:
        raise
    except ModelError as error:
        wrong = str(error)
    require(not wrong, "serve", "chat-template", "a template of messages", Phrase(f"{options.chat_template}: {wrong}"))


def _uvicorn_server(server: Server, grace: float) -> uvicorn.Server:
    """The uvicorn server of an application: SIGTERM and Ctrl-C give rows `grace` seconds, a second signal ends it at once."""
    import uvicorn

    from decodestep.serving.connection import Connection

    stopping = threading.Event()

    class Stopping(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            asyncio.get_running_loop().set_exception_handler(_LoopErrors())
            await super().startup(sockets)

        def handle_exit(self, sig: int, frame: object) -> None:
            """Replaces uvicorn's handler, which raises the signal again after everything has been closed."""
            if stopping.is_set():
                asyncio.get_running_loop().call_soon_threadsafe(self._cut)
                return
            stopping.set()
            _say(f"stopping: new requests are refused, running ones have {grace:g} s")
            threading.Thread(target=self._close).start()

        def _close(self) -> None:
            server.engine.close(grace)  # from now on new requests are answered with 503
            self.should_exit = True

        def _cut(self) -> None:
            """Ends all connections, which ends their requests; cancelling uvicorn's tasks would log a failure for each."""
            self.should_exit = True
            for connection in list(self.server_state.connections):
                connection.transport.abort()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            asyncio.get_running_loop().call_later(_READING, self._cut)
            await super().shutdown(sockets)

        def _log_started_message(self, listeners: object) -> None:
            pass

    # h11 limits request heads to 64 KiB, and reads the body of a request that also offers HTTP/2, as Java's do. httptools,
    # which uvicorn takes if it is installed, does neither.
    config = uvicorn.Config(
        server.app,
        http=Connection,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=_IDLE,
        backlog=1,
    )
    return Stopping(config)


class _LoopErrors:
    """The event loop's exception handler, which says now and then that connections wait because too many files are open.

    asyncio's own writes a traceback every second.
    """

    def __init__(self) -> None:
        self._said: float | None = None

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)):
            loop.default_exception_handler(context)
        elif self._said is None or time.monotonic() - self._said >= _WAITING_SECONDS:
            self._said = time.monotonic()
            _say(f"new connections wait until others end: {os.strerror(error.errno)}")


def _allow_files() -> None:
    """Raises the limit of open files as far as the system allows: each connection is one, and as a rule 1024 are allowed."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS allows fewer than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _Listening(socket.socket):
    """A socket whose queue is long, although asyncio is to accept only one connection at a time.

    Of several, it goes on where the first one has failed because too many files are open, and tries again a second later once
    for each failure, ever more often.
    """

    def listen(self, backlog: int = _QUEUE) -> None:
        super().listen(max(backlog, _QUEUE))


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = _Listening(family)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen()
    except UnicodeError:  # from the encoding of names: 127.0.0..1 has an empty part
        refuse("serve", "host", "an address or the name of a host", host)
    except OSError as error:
        raise OSError(f"serve: cannot listen on {host}:{port}: {error.strerror or error}") from None
    return found


def _hosts(options: argparse.Namespace, address: str, keys: list[str]) -> list[str] | None:
    """The names by which requests may call the server; None for any.

    On loopback without keys, they are the protection from pages whose own name a DNS server leads to this machine.
    """
    names = [*options.allowed_host, options.host]
    closed = bool(options.allowed_host) or (ip_address(address).is_loopback and not keys)
    return names if closed and "*" not in names else None


def _default_name(model: str) -> str:
    """What requests may call the model: its name on the hub, or the last part of its path, also where that is "."."""
    if hub.is_name(model) and not os.path.exists(model):
        return model
    return Path(os.path.abspath(model)).name.removesuffix(".gguf")


def _is_allowed_host(text: str) -> bool:
    return text == "*" or bool(text and not set("/:@* ") & set(text))


def _is_origin(text: str) -> bool:
    """Whether browsers may send it as Origin: a path, or a slash at the end, would never match."""
    scheme, _, host = text.partition("://")
    return text in ("*", "null") or bool(scheme and host and not set("/?#@ ") & set(host))


def _keys(options: argparse.Namespace) -> list[str]:
    text = read_option_file(options, "api-key-file")
    if text is None:
        return []
    keys = [line.strip() for line in text.splitlines()]
    keys = [key for key in keys if key and not key.startswith("#")]
    if not keys:
        refuse("serve", "api-key-file", "a file with one key per line", options.api_key_file)
    return keys


def _say(text: str) -> None:
    with suppress(OSError):  # whoever read stderr may be gone: no reason to end, above all not in the handler of a signal
        print(f"decodestep: {text}", file=sys.stderr, flush=True)
