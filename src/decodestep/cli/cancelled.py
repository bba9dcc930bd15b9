"""What Ctrl-C does while a model generates."""

from __future__ import annotations

import signal


class Cancelled:
    """Inside the block the first Ctrl-C only sets `requested`; a second one interrupts."""

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> None:
        self._previous = signal.signal(signal.SIGINT, self._interrupt)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def _interrupt(self, *_: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
