"""The calls into the native core."""

from __future__ import annotations

import numpy as np

from decodestep import _native
from decodestep._base import arrays
from decodestep._base.dispatch import threads
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import PackedWeight


def linear(x: np.ndarray, weight: PackedWeight | LinearPanels) -> np.ndarray:
    y = np.empty((x.shape[0], weight.shape[1]), np.float32)
    if isinstance(weight, LinearPanels):
        _native.linear_panels(arrays.contiguous_rows(x), weight.data, int(weight.format), y, threads())
    else:
        _native.linear(arrays.contiguous_rows(x), weight.rows, int(weight.format), y, threads())
    return y


def take_rows(weight: PackedWeight, ids: np.ndarray) -> np.ndarray:
    """The float32 rows `ids` of a weight, each in [0, N): an embedding look-up."""
    values = np.empty((len(ids), weight.inputs), np.float32)
    _native.take_rows(weight.rows, int(weight.format), np.ascontiguousarray(ids, np.int64), values)
    return values
