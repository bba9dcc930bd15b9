"""Ctrl-C while a model generates."""

from __future__ import annotations

import signal


class Cancelled:
    """Inside the block, the first Ctrl-C only makes `requested()` return True; a second one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._requested = False

    def requested(self) -> bool:
        return self._requested

    def __enter__(self) -> Cancelled:
        self._previous = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def _interrupt(self, *_: object) -> None:
        if self._requested:
            raise KeyboardInterrupt
        self._requested = True
