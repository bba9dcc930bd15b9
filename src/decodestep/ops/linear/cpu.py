"""The calls into the native core."""

from __future__ import annotations

import numpy as np

from decodestep import _native
from decodestep.dispatch import threads
from decodestep.ops.linear.weight import PackedWeight


def linear(x: np.ndarray, weight: PackedWeight) -> np.ndarray:
    if x.shape[1] > 1 and x.strides[1] != x.itemsize:
        x = np.ascontiguousarray(x)
    y = np.empty((x.shape[0], weight.shape[1]), np.float32)
    _native.linear(x, weight.rows, int(weight.format), y, threads())
    return y


def take_rows(weight: PackedWeight, ids: np.ndarray) -> np.ndarray:
    """The float32 rows `ids` of a weight: an embedding look-up."""
    values = np.empty((len(ids), weight.inputs), np.float32)
    _native.take_rows(weight.rows, int(weight.format), np.ascontiguousarray(ids, np.int64), values)
    return values
