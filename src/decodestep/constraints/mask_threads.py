"""The threads on which masks are computed while the rows' own thread goes on."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache

_MOST = 4  # llguidance leaves the interpreter to other threads while it computes a mask
_running: set[Future[None]] = set()


def submit(compute: Callable[[], None]) -> Future[None]:
    """Runs a function on one of the threads."""
    future = _threads().submit(compute)
    _running.add(future)
    future.add_done_callback(_running.discard)
    return future


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(_MOST, os.cpu_count() or 1), "decodestep-masks")


def _finish() -> None:
    wait(_running.copy())


if hasattr(os, "register_at_fork"):  # only the thread that forks is in the child, whose rows need their masks there
    os.register_at_fork(before=_finish, after_in_child=_threads.cache_clear)
