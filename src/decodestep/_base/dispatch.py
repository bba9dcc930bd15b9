"""Chooses the backend of a call.

A backend requested by name serves the call or raises. ``"auto"`` is the first in the order of `BACKENDS` that can serve
it; each operator states its conditions in its docstring, and `profile` shows which backend ran.
"""

from __future__ import annotations

from collections.abc import Mapping

from decodestep._base.checks import Phrase, refuse, require_choice

BACKENDS = ("cpu", "triton", "reference")


def choose(op: str, backend: str, obstacles: Mapping[str, str | None]) -> str:
    """The backend for a call. obstacles: for each backend of the operator, why it cannot serve the call, or None."""
    if isinstance(backend, str) and backend == "auto":  # an array is compared item by item
        for name in BACKENDS:  # a plain loop: a generator costs 300 ns here, and some kernels take 2 us
            if name in obstacles and obstacles[name] is None:
                return name
    require_choice(op, "backend", backend, ("auto", *obstacles))
    obstacle = obstacles[backend]
    if obstacle is not None:
        refuse(op, "backend", "able to serve the call", Phrase(f"{backend!r}, which {obstacle}"))
    return backend
