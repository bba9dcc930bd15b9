"""While a command generates: how far the prompt is, and Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from decodestep._base.progress import progress_line


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
