"""Measures the time of operator calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

Result = TypeVar("Result")


@dataclass
class Cost:
    """The number of calls of an operator and their total wall time in seconds."""

    calls: int = 0
    seconds: float = 0.0


@dataclass
class Profile:
    """What ran inside a `profile` block.

    Attributes:
        costs: the `Cost` of each (operator, backend).
        parts: for an operator that does the work of several, the `Cost` of each of these within its own, by (operator, backend,
            part).
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

    The block belongs to the current context (a `contextvars.ContextVar`): asyncio tasks started in it are recorded,
    threads started in it are not.

    Yields:
        A `Profile`, which is filled as calls return. A call that raises is not counted; an operator called by another operator
        counts as part of it. Inside nested blocks the innermost records.
    """
    record = Profile()
    token = _profile.set(record)
    try:
        yield record
    finally:
        _profile.reset(token)


def timed(op: str, backend: str, function: Callable[..., Result]) -> Callable[..., Result]:
    """`function`, or, inside a `profile` block, a function that calls it and records its time.

    For operators of a few microseconds: calling the result costs less than `run`. A call that returns NotImplemented is not
    recorded: another function will serve it.
    """
    record = _profile.get()
    return function if record is None else partial(_time, record, op, backend, function)


def run(op: str, backend: str, function: Callable[..., Result], *args: object, **kwargs: object) -> Result:
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


def _time(record: Profile, op: str, backend: str, function: Callable[..., Result], *args: object, **kwargs: object) -> Result:
    token = _profile.set(None)  # calls made by `function` are part of it
    running = _running.set((record, op, backend))
    start = time.perf_counter()
    try:
        result = function(*args, **kwargs)
        if result is not NotImplemented:
            record.add(op, backend, time.perf_counter() - start)
        return result
    finally:
        _running.reset(running)
        _profile.reset(token)
