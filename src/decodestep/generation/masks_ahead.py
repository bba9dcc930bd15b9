"""The masks of constrained rows, computed on threads of their own: one that takes long holds up its own row alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent import futures

from decodestep.sampling.row import Row

# Seconds that the rows of a batch wait for the masks of some, with which they also know the tokens that must follow: 48 tokens
# of an object of four properties took 35 forward passes with it, and 48 without. Half of all masks take less than a tenth of
# it; of a vocabulary of 256,000 tokens, one in a hundred takes longer.
_PATIENCE = 0.001


def begin_masks(rows: Iterable[Row]) -> None:
    """Starts computing the masks of the next tokens of rows, all of which have drawn."""
    for row in rows:
        if row.constraint is not None and not row.reason:
            row.constraint.begin(row.history.tokens)


def have_masks(rows: Sequence[Row], *, wait: bool = True) -> list[bool]:
    """Which rows may draw without computing a mask that is not known yet. wait: a short time, for those that may not."""
    ahead = [None if row.constraint is None or row.reason else row.constraint.ahead for row in rows]
    missing = [each for each in ahead if each is not None and not each.done()]
    if wait and missing:
        futures.wait(missing, _PATIENCE)
    return [each is None or each.done() for each in ahead]
