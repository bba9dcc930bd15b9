"""While a command runs: a line that says how far it is, and Ctrl-C."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ERASE = "\r\x1b[K"


@contextmanager
def progress_line(after: float) -> Iterator[Callable[[str], None]]:
    """Yields show(text), which writes the line anew on standard error: on a terminal, and only `after` seconds from now on, so
    that short work shows nothing; "" erases it. At the end it is erased, so that an error has a line of its own."""
    began, shown = time.monotonic(), False

    def show(text: str) -> None:
        nonlocal shown
        if shown or (text and sys.stderr.isatty() and time.monotonic() - began >= after):
            width = shutil.get_terminal_size().columns - 1  # a full line would begin another, which is not erased
            print(f"{_ERASE}{text[:width]}", end="", file=sys.stderr, flush=True)
            shown = bool(text)

    try:
        yield show
    finally:
        show("")


@contextmanager
def prompt_progress() -> Iterator[Callable[[int, int], None]]:
    """Yields the `progress` of a call of `generate`: a line, from a second on, until the prompt has been run."""
    with progress_line(after=1.0) as show:
        yield lambda done, tokens: show(f"reading the prompt: {done} of {tokens} tokens" if done < tokens else "")


class Cancelled:
    """Inside the block, which generates, the first Ctrl-C only makes `requested()` return True; a second one raises
    KeyboardInterrupt."""

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
