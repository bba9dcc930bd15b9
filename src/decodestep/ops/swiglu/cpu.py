"""The call into the native core."""

from __future__ import annotations

import numpy as np

from decodestep import _native


def swiglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    y = np.empty(gate.shape, np.float32)
    _native.swiglu(_rows(gate), _rows(up), y)
    return y


def _rows(array: np.ndarray) -> np.ndarray:
    """The array itself where its rows are contiguous: two halves of one product need no copy."""
    return array if array.shape[1] <= 1 or array.strides[1] == array.itemsize else np.ascontiguousarray(array)
