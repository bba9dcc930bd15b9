"""The calls into the native core: the cache as bytes of shape (batch, outer, rows, run)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from decodestep import _native

# in_place(cache, update, starts, axis, mode): with the operator's arguments as they were given. True, or NotImplemented with
# nothing written where they break its rules, or are of a kind that is rare in a decoder.
in_place = _native.tensor_scatter_in_place


def obstacle(dtype: np.dtype, present: np.ndarray | None, axis: int) -> str | None:
    """Why the native kernel cannot write to `present`, or None; a new array (None) is packed."""
    if dtype.kind in "OU":
        return "does not hold strings"
    if present is not None and present.size and not _folds(present, axis):
        return "needs the axes of out to fold into (batch, outer, rows, run)"
    return None


def scatter(present: np.ndarray, update: np.ndarray, starts: np.ndarray, axis: int) -> None:
    if update.size:  # then the cache, which is at least as long, is not empty either
        _native.tensor_scatter(present, update if _folds(update, axis) else np.ascontiguousarray(update), starts, axis)


def _folds(array: np.ndarray, axis: int) -> bool:
    """Whether the axes between batch and sequence fold into one, and those after the sequence are contiguous."""
    if array.flags.c_contiguous:
        return True
    run = array.itemsize
    for length, stride in zip(array.shape[:axis:-1], array.strides[:axis:-1], strict=True):
        if length != 1 and stride != run:
            return False
        run *= length
    outer = [(n, s) for n, s in zip(array.shape[1:axis], array.strides[1:axis], strict=True) if n != 1]
    return all(stride == n * s for (_, stride), (n, s) in pairwise(outer))
