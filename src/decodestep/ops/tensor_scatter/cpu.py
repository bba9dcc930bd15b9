"""The call into the native core: the cache as bytes of shape (batch, outer, rows, run)."""

from __future__ import annotations

import math

import numpy as np

from decodestep import _native


def obstacle(present: np.ndarray, update: np.ndarray, axis: int) -> str | None:
    """Why the native kernel cannot serve these arrays, or None."""
    if present.dtype.kind in "OU":
        return "does not hold strings"
    if present.size and update.size and not (_folds(present, axis) and _folds(update, axis)):
        return "needs axes that fold into (batch, outer, rows, run)"
    return None


def scatter(present: np.ndarray, update: np.ndarray, starts: np.ndarray, axis: int) -> None:
    if present.size and update.size:
        _native.tensor_scatter(_as_bytes(present, axis), _as_bytes(update, axis), starts)


def _outer_axes(array: np.ndarray, axis: int) -> list[tuple[int, int]]:
    return [(n, s) for n, s in zip(array.shape[1:axis], array.strides[1:axis], strict=True) if n != 1]


def _folds(array: np.ndarray, axis: int) -> bool:
    """Whether the axes between batch and sequence are evenly spaced and everything behind the sequence axis is packed."""
    if array.flags.c_contiguous:
        return True
    run = array.itemsize
    for length, stride in zip(array.shape[:axis:-1], array.strides[:axis:-1], strict=True):
        if length != 1 and stride != run:
            return False
        run *= length
    outer = _outer_axes(array, axis)
    return all(stride == n * s for (_, stride), (n, s) in zip(outer, outer[1:], strict=False))


def _as_bytes(array: np.ndarray, axis: int) -> np.ndarray:
    batch, *outer, rows = array.shape[: axis + 1]
    shape = (batch, math.prod(outer), rows, math.prod(array.shape[axis + 1 :]) * array.itemsize)
    if array.flags.c_contiguous:
        return array.view(np.uint8).reshape(shape)
    innermost = _outer_axes(array, axis)[-1:]
    strides = (array.strides[0], innermost[0][1] if innermost else 0, array.strides[axis], 1)
    first = array[(slice(0, 1),) * array.ndim].view(np.uint8)
    return np.lib.stride_tricks.as_strided(first, shape, strides)
