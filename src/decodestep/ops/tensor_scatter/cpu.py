"""The call into the native core: the cache as bytes of shape (batch, outer, rows, run)."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np

from decodestep import _native


def obstacle(dtype: np.dtype, present: np.ndarray | None, axis: int) -> str | None:
    """Why the native kernel cannot write to `present`, or None; a new array (None) is packed."""
    if dtype.kind in "OU":
        return "does not hold strings"
    if present is not None and present.size and not _folds(present, axis):
        return "needs the axes of out to fold into (batch, outer, rows, run)"
    return None


def scatter(present: np.ndarray, update: np.ndarray, starts: np.ndarray, axis: int) -> None:
    if update.size:  # then the cache, which is at least as long, is not empty either
        packed = update if _folds(update, axis) else np.ascontiguousarray(update)
        _native.tensor_scatter(_as_bytes(present, axis), _as_bytes(packed, axis), starts)


def _outer_axes(array: np.ndarray, axis: int) -> list[tuple[int, int]]:
    return [(n, s) for n, s in zip(array.shape[1:axis], array.strides[1:axis], strict=True) if n != 1]


def _folds(array: np.ndarray, axis: int) -> bool:
    """Whether the axes between batch and sequence fold into one, and those after the sequence are contiguous."""
    if array.flags.c_contiguous:
        return True
    run = array.itemsize
    for length, stride in zip(array.shape[:axis:-1], array.strides[:axis:-1], strict=True):
        if length != 1 and stride != run:
            return False
        run *= length
    return all(stride == n * s for (_, stride), (n, s) in pairwise(_outer_axes(array, axis)))


def _as_bytes(array: np.ndarray, axis: int) -> np.ndarray:
    """The bytes of an array that folds and is not empty, as a view (batch, outer, rows, run)."""
    shape, packed = array.shape, array.flags.c_contiguous
    if packed and axis == 2 and array.ndim == 4:  # the usual case, (batch, heads, slots, width)
        return array.view(np.uint8)
    outer, rows = prod(shape[1:axis]), shape[axis]
    if packed:
        return array.view(np.uint8).reshape(shape[0], outer, rows, -1)
    innermost = _outer_axes(array, axis)[-1:]
    strides = (array.strides[0], innermost[0][1] if innermost else 0, array.strides[axis], 1)
    first = array[(slice(0, 1),) * array.ndim].view(np.uint8)
    run = prod(shape[axis + 1 :]) * array.itemsize
    return np.lib.stride_tricks.as_strided(first, (shape[0], outer, rows, run), strides)
