"""The threads of the native kernels, and their instruction set."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from decodestep._base.checks import is_int, require
from decodestep._base.machine_limits import available_cpus

MAX_THREADS = 256

_threads: ContextVar[int | None] = ContextVar("decodestep_threads", default=None)


def default_threads() -> int:
    """The number of available CPUs; more threads would only wait for each other at every barrier."""
    return min(available_cpus(), MAX_THREADS)


def thread_limit() -> int:
    """The upper limit of a requested number of threads. A function of its own, which tests replace."""
    return default_threads()


def threads() -> int:
    """The thread count of native kernels: that of `use_threads`, else DECODESTEP_THREADS, else the number of available CPUs.

    A requested number is limited to the available CPUs.

    Raises:
        ValueError: if DECODESTEP_THREADS is not an integer in [1, 256].
    """
    count = _threads.get()
    if count is None:
        count = _environment_threads()
    return default_threads() if count is None else min(count, thread_limit())


@contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Sets the number of threads of native kernels inside a ``with`` block; results have the same bits for every number.

    The number belongs to the current context (a `contextvars.ContextVar`): asyncio tasks started in the block inherit it,
    threads started in the block do not and use DECODESTEP_THREADS, else all CPUs of this process. A model with a number of its
    own, `load(threads=...)`, keeps it. docs/contents.md has the whole order.

    Args:
        count: an integer in [1, 256], or None to leave the number unchanged. No more threads run than the process has CPUs (see
            `_base.machine_limits`: affinity, physical cores, the quota of a container).

    Raises:
        ValueError: for anything else. Blocks nest; the inner one counts.
    """
    if count is None:
        yield
        return
    require(is_int(count) and 1 <= count <= MAX_THREADS, "use_threads", "count", f"an integer in [1, {MAX_THREADS}]", count)
    token = _threads.set(int(count))
    try:
        yield
    finally:
        _threads.reset(token)


@cache
def _environment_threads() -> int | None:
    """DECODESTEP_THREADS, read once because a lookup takes as long as a small kernel."""
    value = os.environ.get("DECODESTEP_THREADS")
    if value is None:
        return None
    require(
        value.isdecimal() and 1 <= int(value) <= MAX_THREADS,
        "threads",
        "DECODESTEP_THREADS",
        f"an integer in [1, {MAX_THREADS}]",
        value,
    )
    return int(value)


def pin_workers(cpus: list[int]) -> bool:
    """From now on, worker n of the native kernels, from 1, runs on cpus[n % len(cpus)] alone; False if the system refuses."""
    from decodestep import _native  # here, so that a reference imports no kernel

    return _native.pin_workers(cpus)


def isa() -> str:
    """The instruction set of the native kernels: the best that the CPU supports, or DECODESTEP_ISA."""
    from decodestep import _native

    return _native.isa()


def native_build() -> tuple[str, str]:
    """The compiler of the native kernels, and the instruction sets that they are built for and this machine has."""
    from decodestep import _native

    return _native.compiler(), _native.tiers()
