"""Server-sent events that end when the client disconnects or stops reading."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_LOG = logging.getLogger("decodestep.serving")
SEND_SECONDS = 60.0  # how long a client may stop reading


class EventStream(Response):
    """A response that streams the events of an iterator, as bytes; an item may hold several events.

    close: awaited at the end, also if the client has disconnected or stopped reading, or if the stream has failed.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], Awaitable[None]]) -> None:
        self.status_code, self.background, self.body = 200, None, b""
        self._events, self._close = events, close
        self._sending: float | None = time.monotonic()  # when the current send began; None between sends
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writing = asyncio.ensure_future(self._write(send))
        leaving = asyncio.ensure_future(until_left(receive))
        try:
            ended: set[asyncio.Future[None]] = set()
            while not (ended or self._unread_for() > SEND_SECONDS):
                ended, _ = await asyncio.wait((writing, leaving), timeout=SEND_SECONDS / 4, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writing, leaving):
                task.cancel()
                with suppress(BaseException):
                    await task
            await self._close()
        if not writing.cancelled() and (error := writing.exception()) is not None:
            _LOG.error("a stream failed", exc_info=error)

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._sending = None  # waiting for the first event does not count
        async for data in self._events:
            self._sending = time.monotonic()  # one check per interval: a timeout for each event would cost as much as the event
            await send({"type": "http.response.body", "body": data, "more_body": True})
            self._sending = None
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _unread_for(self) -> float:
        return 0.0 if self._sending is None else time.monotonic() - self._sending


async def until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
