"""A connection of uvicorn's that does not wait for its client for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from decodestep.serving.errors import HttpError
from decodestep.serving.wire import json_bytes


class Connection(H11Protocol):
    """Closes itself if the head of a request takes longer than `timeout_keep_alive` to come, and then, or after its last
    response, waits no longer than that for a client that reads nothing of what is left.

    uvicorn's own timer starts at the end of a response and stops at the next byte: clients that stay silent, or never finish a
    head, would use up the descriptors that others need. So would those that stop reading, for which asyncio waits for ever.
    """

    _deadline: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None
    _ignoring = False  # what comes after the last request

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_request()
        self._expect_reading(0)

    def data_received(self, data: bytes) -> None:
        if not self._ignoring:
            super().data_received(data)

    def on_response_complete(self) -> None:
        self._expect_request()
        super().on_response_complete()  # may begin with the next request at once

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._deadline, self._reading):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answers what is not HTTP, in the form of the API's other errors.

        Where it follows a whole request on a connection that its client wants closed, it is ignored: that request's response
        goes on.
        """
        if self.cycle is not None and not (self.cycle.more_body or self.cycle.response_complete):
            self._ignoring = True
            return
        body = json_bytes(HttpError(400, msg, code="invalid_http").body())
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        head = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (head, h11.Data(body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
        self.transport.close()

    def _expect_request(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(self.timeout_keep_alive, self._close_without_request, self.cycle)

    def _close_without_request(self, before: object) -> None:
        """before: uvicorn's state of the request that was the last one when the wait began."""
        if self.cycle is before:
            self.transport.close()

    def _expect_reading(self, unread: int) -> None:
        self._reading = self.loop.call_later(self.timeout_keep_alive, self._abort_unless_read, unread)

    def _abort_unless_read(self, before: int) -> None:
        """before: how many bytes were left to be read when the wait began, if the connection was being closed; else 0."""
        closing = self.transport.is_closing()
        unread = self.transport.get_write_buffer_size() if closing else 0
        if closing and unread in (0, before):
            self.transport.abort()
        else:
            self._expect_reading(unread)
