"""The command line: `run` in a process of its own, for its streams and signals; `call` in this one, which has imported what it
needs, for what it prints and returns."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import pytest

from decodestep import cli, models
from support import processes

COMMAND = (sys.executable, "-m", "decodestep")


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return processes.run([*COMMAND, *map(str, arguments)], **options)


def code_of(*arguments: str) -> int:
    """The exit code, for a test that reads what is printed itself."""
    try:
        return cli.main(list(arguments))
    except SystemExit as end:  # argparse's
        return end.code


def call(
    *arguments: object, input: str = "", model: models.Model | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """model: one that is loaded already, in place of the one that the command names."""
    words = list(map(str, arguments))
    streams = io.StringIO(input), io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            patch.setattr(sys, name, stream)
        for name, value in environment.items():
            patch.setenv(name, value)
        if model is not None:
            patch.setattr(models, "load", lambda *_, **__: model)
        code = code_of(*words)
    return subprocess.CompletedProcess(words, code, *(stream.getvalue() for stream in streams[1:]))
