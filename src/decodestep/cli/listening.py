"""The socket and the uvicorn server with which ``decodestep serve`` listens: many connections, and an end in good time."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from decodestep._base.checks import refuse

if TYPE_CHECKING:
    import uvicorn

    from decodestep.serving.http import Server

_READING = 5.0  # seconds for clients to read what was written for them, after SIGTERM and the time that rows have then
# A connection without requests is closed after these seconds: later than by clients and proxies, which keep one for 60 at most
# as a rule, since what is sent on a connection while it is being closed gets no answer.
IDLE = 75
_QUEUE = 2048  # connections that wait to be accepted
_WAITING_SECONDS = 60.0  # between two lines in the log that say that connections wait for descriptors


def say(text: str) -> None:
    with suppress(OSError):  # whoever read stderr may be gone: no reason to end, above all not in the handler of a signal
        print(f"decodestep: {text}", file=sys.stderr, flush=True)


def new_uvicorn_server(server: Server, grace: float) -> uvicorn.Server:
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
            say(f"stopping: new requests are refused, running ones have {grace:g} s")
            threading.Thread(target=self._close).start()

        def _close(self) -> None:
            server.models.close(grace)  # from now on new requests are answered with 503
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
        timeout_keep_alive=IDLE,
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
            say(f"new connections wait until others end: {os.strerror(error.errno)}")


def allow_files() -> None:
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


def listen(host: str, port: int) -> socket.socket:
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
