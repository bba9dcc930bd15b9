"""Which backend serves a call, on how many threads, and what it cost.

A backend that is asked for by name serves or raises. ``"auto"`` takes the first in the order `BACKENDS` that can serve
the call; each operator states its conditions in its docstring, and `profile` shows what was chosen.
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

BACKENDS = ("cpu", "reference")
MAX_THREADS = 256

Result = TypeVar("Result")


def choose(op: str, backend: str, obstacles: Mapping[str, str | None]) -> str:
    """The backend for a call; `obstacles` holds each backend of the operator and why it cannot serve (None: it can)."""
    if backend == "auto":
        for name in BACKENDS:  # quicker than a generator, which counts beside a kernel of a few microseconds
            if name in obstacles and obstacles[name] is None:
                return name
    require_choice(op, "backend", backend, ("auto", *obstacles))
    obstacle = obstacles[backend]
    if obstacle is not None:
        refuse(op, "backend", "able to serve the call", f"{backend!r}, which {obstacle}")
    return backend


@cache
def _asked_threads() -> int | None:
    """DECODESTEP_THREADS, read once: a look-up of the environment takes as long as a small kernel."""
    asked = os.environ.get("DECODESTEP_THREADS")
    if asked is None:
        return None
    require(
        asked.isdecimal() and 1 <= int(asked) <= MAX_THREADS,
        "threads",
        "DECODESTEP_THREADS",
        f"an integer in [1, {MAX_THREADS}]",
        repr(asked),
    )
    return int(asked)


def _default_threads() -> int:
    asked = _asked_threads()
    if asked is not None:
        return asked
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MAX_THREADS)


_threads: ContextVar[int | None] = ContextVar("decodestep_threads", default=None)


def threads() -> int:
    """The thread count of native kernels: `use_threads`, else DECODESTEP_THREADS, else the cores of this process."""
    asked = _threads.get()
    return _default_threads() if asked is None else asked


@contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Sets the thread count of native kernels inside the block; None leaves it. Any count gives the same bits."""
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
    calls: int = 0
    seconds: float = 0.0


@dataclass
class Profile:
    """What ran inside a `profile` block: calls and seconds for every (operator, backend)."""

    costs: dict[tuple[str, str], Cost] = field(default_factory=dict)

    def add(self, op: str, backend: str, seconds: float) -> None:
        cost = self.costs.setdefault((op, backend), Cost())
        cost.calls += 1
        cost.seconds += seconds


_profile: ContextVar[Profile | None] = ContextVar("decodestep_profile", default=None)


@contextmanager
def profile() -> Iterator[Profile]:
    """Records every operator call inside the block: ``with ds.profile() as p: ...; p.costs``."""
    record = Profile()
    token = _profile.set(record)
    try:
        yield record
    finally:
        _profile.reset(token)


def noted(op: str, backend: str, function: Callable[..., Result]) -> Callable[..., Result]:
    """An operator's implementation: itself, or, where a `profile` is open, one that notes its cost when it has a result.

    Inner calls are the outer one's. This costs less than `run`, which counts beside a kernel of a few microseconds.
    """
    record = _profile.get()
    return function if record is None else partial(_note, record, op, backend, function)


def run(op: str, backend: str, function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """Calls an operator's implementation, as `noted` gives it."""
    return noted(op, backend, function)(*args, **kwargs)


def _note(record: Profile, op: str, backend: str, function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    token = _profile.set(None)
    start = time.perf_counter()
    try:
        result = function(*args, **kwargs)
        record.add(op, backend, time.perf_counter() - start)
        return result
    finally:
        _profile.reset(token)
