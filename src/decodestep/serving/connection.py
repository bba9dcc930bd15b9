"""A connection of uvicorn's that does not wait for a request for ever."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """Closes itself if the head of a request takes longer than `timeout_keep_alive` to come.

    uvicorn's own timer starts at the end of a response and stops at the next byte: clients that stay silent, or never finish a
    head, would use up the descriptors that others need.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_request()

    def on_response_complete(self) -> None:
        self._expect_request()
        super().on_response_complete()  # may begin with the next request at once

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        super().connection_lost(exc)

    def _expect_request(self) -> None:
        self._forget_deadline()
        self._deadline = self.loop.call_later(self.timeout_keep_alive, self._close_unless_asked, self.cycle)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _close_unless_asked(self, before: object) -> None:
        """before: uvicorn's state of the request that was the last one when the wait began."""
        if self.cycle is before:
            self.transport.close()
