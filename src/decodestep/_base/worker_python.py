"""The Python that runs this library's own processes: those that render chat templates and compile constraints on trial."""

from __future__ import annotations

import os
import sys

_VARIABLE, _NONE = "DECODESTEP_PYTHON", "in-process"
HINT = f"set {_VARIABLE} to the path of a Python, or to {_NONE!r}, which gives up the limits of time and memory"


def worker_python() -> str | None:
    """The program: DECODESTEP_PYTHON, else the one that runs this process; None for "in-process".

    Raises RuntimeError where this process has no Python of its own to start: in a program that embeds Python, such as uWSGI, or
    that was frozen, sys.executable is that program, and would be started a second time.
    """
    given = os.environ.get(_VARIABLE)
    if given:
        return None if given == _NONE else given
    program = sys.executable or ""
    if getattr(sys, "frozen", False) or not any(name in os.path.basename(program).lower() for name in ("python", "pypy")):
        raise RuntimeError(f"this process runs in {program or 'an unknown program'}, which is not a Python: {HINT}")
    return program
