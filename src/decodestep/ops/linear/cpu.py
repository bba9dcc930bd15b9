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
    rows = arrays.contiguous_rows(x)
    if isinstance(weight, LinearPanels):
        _native.linear_panels(x=rows, panels=weight.data, format=int(weight.format), y=y, threads=threads())
    else:
        _native.linear(x=rows, w=weight.rows, format=int(weight.format), y=y, threads=threads())
    return y


def panel_argument(panels: LinearPanels) -> tuple[np.ndarray, int, int]:
    """A weight as calls of the core that take several have it: its bytes, their format and how many outputs they are."""
    return panels.data, int(panels.format), panels.outputs


def gather_rows(weight: PackedWeight, ids: np.ndarray) -> np.ndarray:
    """Rows `ids` of a weight, each in [0, N), as float32: an embedding look-up."""
    values = np.empty((len(ids), weight.inputs), np.float32)
    ids = np.ascontiguousarray(ids, np.int64)
    _native.gather_rows(w=weight.rows, format=int(weight.format), ids=ids, values=values, threads=threads())
    return values
