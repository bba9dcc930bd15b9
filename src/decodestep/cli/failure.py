"""An error as the command line tells it: an exit code and one line."""

from __future__ import annotations

import argparse
from typing import NoReturn

from decodestep._base.checks import RequestError

TRACEBACK = "--traceback"


def failure(error: BaseException) -> tuple[int, str]:
    """The exit code, 1 or 2, and the message, which is one line."""
    match error:
        case RequestError():
            return 2, str(error)
        case KeyboardInterrupt():
            return 1, "interrupted"
        case MemoryError():
            return 1, f"out of memory: {error}".removesuffix(": ")  # Python's own says no more
        case OSError(filename=str(path), strerror=str(reason)):
            return 1, f"{path}: {reason}"
        case ImportError() | OSError() | RuntimeError():
            return 1, str(error)
    return 1, f"internal error: {type(error).__name__}: {error} ({TRACEBACK} shows where)"


class Parser(argparse.ArgumentParser):
    """Its errors are one line too: argparse puts the usage before them, which for some programs is a screenful."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog.replace(' ', ': ')}: {message} ({self.prog} --help lists what it takes)\n")
