"""Processes that a test starts and that end with it, whatever happens, with all that they started; and their memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """The command, in a session of its own, with pipes for its output; the whole session is killed at the end."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **(pipes | options)) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError, PermissionError):  # it has ended; macOS calls that a lack of permission
                os.killpg(process.pid, signal.SIGKILL)


def run(
    command: Sequence[str], *, input: str | None = None, timeout: float = 120, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end, or after `timeout` seconds kills it and all that it started."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with started(command, **options) as process:
        out, err = process.communicate(input, timeout=timeout)
    assert not (check and process.returncode), (out + err)[-3000:]
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def run_python(code: str, *, env: Mapping[str, str] = os.environ, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs the code in another interpreter, which finds the modules that this one finds, those of tests among them."""
    return run([sys.executable, "-c", code], env={**env, "PYTHONPATH": os.pathsep.join(sys.path)}, **options)


@contextmanager
def forked_child(check: Callable[[], bool]) -> Iterator[None]:
    """A child that is forked now and in which `check` must be true; its end is waited for when the block ends."""
    child = os.fork()
    if child == 0:
        ok = False
        try:
            ok = check()
        finally:
            os._exit(not ok)
    try:
        yield
    finally:
        _, status = os.waitpid(child, 0)
    assert status == 0


def resident(pid: int | str = "self") -> int:
    """The bytes of a process's memory that Linux counts as resident."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
