"""Chooses the backend of a call and the number of threads, and measures its time.

A backend requested by name serves the call or raises. ``"auto"`` is the first in the order of `BACKENDS` that can serve
it; each operator states its conditions in its docstring, and `profile` shows which backend ran.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, TypeVar

from decodestep._base.checks import is_int, refuse, require, require_choice
from decodestep._base.cpu_limits import available_cpus

BACKENDS = ("cpu", "triton", "reference")
MAX_THREADS = 256

Result = TypeVar("Result")


def choose(op: str, backend: str, obstacles: Mapping[str, str | None]) -> str:
    """The backend for a call. obstacles: for each backend of the operator, why it cannot serve the call, or None."""
    if backend == "auto":
        for name in BACKENDS:  # a plain loop: a generator costs 300 ns here, and some kernels take 2 us
            if name in obstacles and obstacles[name] is None:
                return name
    require_choice(op, "backend", backend, ("auto", *obstacles))
    obstacle = obstacles[backend]
    if obstacle is not None:
        refuse(op, "backend", "able to serve the call", f"{backend!r}, which {obstacle}")
    return backend


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
        repr(value),
    )
    return int(value)


def isa() -> str:
    """The instruction set of the native kernels: the best that the CPU supports, or DECODESTEP_ISA."""
    from decodestep import _native  # here, so that a reference imports no kernel

    name: str = _native.isa()
    return name


def default_threads() -> int:
    """The number of available CPUs; more threads would only wait for each other at every barrier."""
    return min(available_cpus(), MAX_THREADS)


def thread_limit() -> int:
    """The upper limit of a requested number of threads. A function of its own, which tests replace."""
    return default_threads()


_threads: ContextVar[int | None] = ContextVar("decodestep_threads", default=None)


def threads() -> int:
    """The thread count of native kernels: that of `use_threads`, else DECODESTEP_THREADS, else the number of available CPUs.

    A requested number is limited to the available CPUs.

    Raises ValueError if DECODESTEP_THREADS is not an integer in [1, 256].
    """
    count = _threads.get()
    if count is None:
        count = _environment_threads()
    return default_threads() if count is None else min(count, thread_limit())


@contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Sets the number of threads of native kernels inside a ``with`` block; results have the same bits for every number.

    count: an integer in [1, 256], or None to leave the number unchanged. No more threads run than the process has CPUs
        (see `_base.cpu_limits`: affinity, physical cores, the quota of a container).
    Raises ValueError for anything else. Blocks nest; the inner one counts.

    The number belongs to the current context (a `contextvars.ContextVar`): asyncio tasks started in the block inherit it,
    threads started in the block do not and use DECODESTEP_THREADS, else all CPUs of this process.
    """
    if count is None:
        yield
        return
    require(is_int(count) and 1 <= count <= MAX_THREADS, "threads", "count", f"an integer in [1, {MAX_THREADS}]", count)
    token = _threads.set(int(count))
    try:
        yield
    finally:
        _threads.reset(token)


@dataclass
class Cost:
    """The number of calls of an operator and their total wall time in seconds."""

    calls: int = 0
    seconds: float = 0.0


@dataclass
class Profile:
    """What ran inside a `profile` block.

    costs: the `Cost` of each (operator, backend). parts: for an operator that does the work of several, the `Cost` of each of
    these within its own, by (operator, backend, part).
    """

    costs: dict[tuple[str, str], Cost] = field(default_factory=dict)
    parts: dict[tuple[str, str, str], Cost] = field(default_factory=dict)

    def add(self, op: str, backend: str, seconds: float) -> None:
        cost = self.costs.setdefault((op, backend), Cost())
        cost.calls += 1
        cost.seconds += seconds


_profile: ContextVar[Profile | None] = ContextVar("decodestep_profile", default=None)
_running: ContextVar[tuple[Profile, str, str] | None] = ContextVar("decodestep_running", default=None)


@contextmanager
def profile() -> Iterator[Profile]:
    """Counts and times the operator calls inside a ``with`` block.

        with ds.profile() as profile:
            ds.rms_norm(x, gamma)
        profile.costs  # {("rms_norm", "cpu"): Cost(calls=1, seconds=...)}

    Yields a `Profile`, which is filled as calls return. A call that raises is not counted; an operator called by another
    operator counts as part of it. Inside nested blocks the innermost records.

    The block belongs to the current context (a `contextvars.ContextVar`): asyncio tasks started in it are recorded,
    threads started in it are not.
    """
    record = Profile()
    token = _profile.set(record)
    try:
        yield record
    finally:
        _profile.reset(token)


def timed(op: str, backend: str, function: Callable[..., Result]) -> Callable[..., Result]:
    """`function`, or, inside a `profile` block, a function that calls it and records its time.

    For operators of a few microseconds: calling the result costs less than `run`.
    """
    record = _profile.get()
    return function if record is None else partial(_time, record, op, backend, function)


def run(op: str, backend: str, function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """Calls an operator's implementation, recorded inside a `profile` block."""
    return timed(op, backend, function)(*args, **kwargs)


def is_timed() -> bool:
    """Whether the running operator is being recorded, so that `add_part` has an effect."""
    return _running.get() is not None


def add_part(part: str, calls: int, seconds: float) -> None:
    """Records the cost of a part of the running operator."""
    running = _running.get()
    if running is not None:
        record, op, backend = running
        cost = record.parts.setdefault((op, backend, part), Cost())
        cost.calls += calls
        cost.seconds += seconds


def _time(record: Profile, op: str, backend: str, function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    token = _profile.set(None)  # calls made by `function` are part of it
    running = _running.set((record, op, backend))
    start = time.perf_counter()
    try:
        result = function(*args, **kwargs)
        record.add(op, backend, time.perf_counter() - start)
        return result
    finally:
        _running.reset(running)
        _profile.reset(token)
