"""A line on a terminal that says how far some work is."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ERASE = "\r\x1b[K"


@contextmanager
def progress_line(after: float) -> Iterator[Callable[[str], None]]:
    """Yields show(text), which writes the line anew on standard error: on a terminal, and only `after` seconds from now on, so
    that short work shows nothing. At the end the line is erased, so that an error has a line of its own."""
    began, shown = time.monotonic(), False

    def show(text: str) -> None:
        nonlocal shown
        if sys.stderr.isatty() and time.monotonic() - began >= after:
            width = shutil.get_terminal_size().columns - 1  # a full line would begin another, which is not erased
            print(f"{_ERASE}{text[:width]}", end="", file=sys.stderr, flush=True)
            shown = True

    try:
        yield show
    finally:
        if shown:
            print(_ERASE, end="", file=sys.stderr, flush=True)
