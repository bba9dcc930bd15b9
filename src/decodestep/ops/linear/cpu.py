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


def head_products(x: np.ndarray, weight: PackedWeight, first: int, count: int, *, transposed: bool) -> np.ndarray:
    """Each head times its own rows of a weight: of the N / H rows of head h, those of [first, first + count) are w[h].

        y[t, h, n] = sum over k of x[t, h, k] * w[h, n, k]          k as in `linear`
        transposed: y[t, h, k] = sum over n of x[t, h, n] * w[h, n, k]  n ascending

    x: float32 (T, H, K), transposed (T, H, count); contiguous along its last axis, aligned. Returns a new array.
    """
    tokens, heads, _ = x.shape
    y = np.empty((tokens, heads, weight.inputs if transposed else count), np.float32)
    _native.head_products(
        x=x,
        w=weight.rows,
        format=int(weight.format),
        inputs=weight.inputs,
        first=first,
        count=count,
        transposed=transposed,
        y=y,
        threads=threads(),
    )
    return y


def panel_argument(panels: LinearPanels) -> tuple[np.ndarray, int, int]:
    """A weight as an argument of core calls that take several: its bytes, format and number of outputs."""
    return panels.data, int(panels.format), panels.outputs


def gather_rows(weight: PackedWeight, ids: np.ndarray) -> np.ndarray:
    """Rows `ids` of a weight, each in [0, N), as float32: an embedding lookup."""
    values = np.empty((len(ids), weight.inputs), np.float32)
    ids = np.ascontiguousarray(ids, np.int64)
    _native.gather_rows(w=weight.rows, format=int(weight.format), ids=ids, values=values, threads=threads())
    return values
