"""A line that says how far long work is."""

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
