"""The threads on which masks are computed while the rows' own thread goes on."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

_MOST = 4  # llguidance leaves the interpreter to other threads while it computes a mask


def submit(compute: Callable[[], None]) -> Future[None]:
    """Runs a function on one of the threads."""
    return _threads().submit(compute)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(_MOST, os.cpu_count() or 1), "decodestep-masks")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)  # where only the thread that forks is there
