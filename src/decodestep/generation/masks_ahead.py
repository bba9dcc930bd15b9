"""The masks of constrained rows, computed on threads of their own: one that takes long holds up its own row alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent import futures

from decodestep.sampling.row import Row

_PATIENCE = 0.0005  # seconds that the rows of a batch wait for the masks of some; ordinary ones take less
_ALONE = 0.01  # seconds where no row could go on meanwhile, after which the caller looks at what else has come


def begin_masks(rows: Iterable[Row]) -> None:
    """Starts computing the masks of the next tokens of rows, all of which have drawn."""
    for row in rows:
        if row.constraint is not None and not row.reason:
            row.constraint.begin(row.history.tokens)


def have_masks(rows: Sequence[Row], *, wait: bool = True) -> list[bool]:
    """Which rows may draw without computing a mask that is not known yet. wait: a short time, for those that may not."""
    ahead = [None if row.constraint is None or row.reason else row.constraint.ahead for row in rows]
    missing = [each for each in ahead if each is not None and not each.done()]
    if wait and missing and len(missing) == len(rows):
        futures.wait(missing, _ALONE, futures.FIRST_COMPLETED)
    if wait and missing:
        futures.wait(missing, _PATIENCE)
    return [each is None or each.done() for each in ahead]
