"""Optional packages: tells what to install if one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from decodestep.errors import MissingExtraError as MissingExtraError


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Context for imports of optional packages: the error for a missing one names the extra that installs it.

    Blocks nest: the inner one names its extra.
    """
    try:
        yield
    except MissingExtraError:
        raise
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.partition(".")[0] == "decodestep":  # a mistake of this package
            raise
        raise MissingExtraError(f"{missing} is not installed: pip install 'decodestep[{name}]'", name=missing) from None
