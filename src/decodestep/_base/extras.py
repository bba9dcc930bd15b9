"""The optional packages: what to install when one of them is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Around imports of optional packages: a missing one is reported with the extra of this package that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.partition(".")[0] == "decodestep":  # our own mistake
            raise
        raise ModuleNotFoundError(f"{missing} is not installed: pip install 'decodestep[{name}]'", name=missing) from None
