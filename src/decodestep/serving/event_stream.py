"""Server-sent events that end when the client goes away, and do not wait for ever for one that does not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

SEND_SECONDS = 60.0  # how long a client may read nothing


class EventStream(Response):
    """The events that an iterator gives, as bytes, several at a time where they come quickly.

    left: called if the client has gone away or has stopped reading.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], left: Callable[[], None]) -> None:
        self.status_code, self.background, self.body = 200, None, b""
        self._events, self._left = events, left
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writing = asyncio.ensure_future(self._write(send))
        leaving = asyncio.ensure_future(until_left(receive))
        try:
            await asyncio.wait((writing, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not writing.done() or writing.cancelled() or writing.exception() is not None:
                self._left()
            for task in (writing, leaving):
                task.cancel()
                with suppress(BaseException):
                    await task

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for data in self._events:
            await asyncio.wait_for(send({"type": "http.response.body", "body": data, "more_body": True}), SEND_SECONDS)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
