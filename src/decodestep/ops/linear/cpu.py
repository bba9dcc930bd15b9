"""The calls into the native core."""

from __future__ import annotations

import numpy as np

from decodestep import _native
from decodestep._base import arrays
from decodestep._base.threads import threads
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import Format, PackedWeight


def linear(x: np.ndarray, weight: PackedWeight | LinearPanels) -> np.ndarray:
    if not isinstance(weight, LinearPanels):
        return linear_rows(x, weight.rows, weight.format)
    y = np.empty((x.shape[0], weight.shape[1]), np.float32)
    rows = arrays.contiguous_rows(x)
    _native.linear_panels(x=rows, panels=weight.data, format=int(weight.format), y=y, threads=threads())
    return y


def linear_rows(x: np.ndarray, weight: np.ndarray, format_: Format) -> np.ndarray:
    """`linear` with the rows of a `PackedWeight` and their format, without making one, which takes longer than a small call."""
    y = np.empty((x.shape[0], weight.shape[0]), np.float32)
    _native.linear(x=arrays.contiguous_rows(x), w=weight, format=int(format_), y=y, threads=threads())
    return y


def grouped_products(x: np.ndarray, weight: np.ndarray, format_: Format, groups: np.ndarray, outputs: int) -> np.ndarray:
    """Each token times one of the groups of `outputs` rows that a weight consists of, such as the experts of a mixture.

        y[t, n] = sum over k of x[t, k] * w[groups[t], n, k]    in the order of `linear`

    x: float32 (T, K). weight, format_: the rows of a `PackedWeight` and their format. groups: int64 (T,), ascending, so that
    the rows of a group are read once; each in [0, N / outputs). Returns a new array (T, outputs).
    """
    y = np.empty((x.shape[0], outputs), np.float32)
    rows = arrays.contiguous_rows(x)
    _native.grouped_products(x=rows, w=weight, format=int(format_), groups=groups, y=y, threads=threads())
    return y


def head_products(
    x: np.ndarray, weight: np.ndarray, format_: Format, inputs: int, first: int, count: int, *, transposed: bool
) -> np.ndarray:
    """Each head times its own rows of a weight: of the N / H rows of head h, those of [first, first + count) are w[h].

        y[t, h, n] = sum over k of x[t, h, k] * w[h, n, k]          k as in `linear`
        transposed: y[t, h, k] = sum over n of x[t, h, n] * w[h, n, k]  n ascending

    x: float32 (T, H, K), transposed (T, H, count); contiguous along its last axis, aligned.
    weight, format_: the rows of a `PackedWeight` and their format. inputs: K. Returns a new array.
    """
    tokens, heads, _ = x.shape
    y = np.empty((tokens, heads, inputs if transposed else count), np.float32)
    _native.head_products(
        x=x,
        w=weight,
        format=int(format_),
        inputs=inputs,
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


def gather_rows(weight: PackedWeight | LinearPanels, ids: np.ndarray) -> np.ndarray:
    """Rows `ids` of a weight, each in [0, N), as float32: an embedding lookup. Panels give the bits of the rows packed."""
    values = np.empty((len(ids), weight.inputs), np.float32)
    ids = np.ascontiguousarray(ids, np.int64)
    if isinstance(weight, LinearPanels):
        data, format_, outputs = panel_argument(weight)
        _native.gather_panels(panels=data, format=format_, outputs=outputs, ids=ids, values=values, threads=threads())
    else:
        _native.gather_rows(w=weight.rows, format=int(weight.format), ids=ids, values=values, threads=threads())
    return values
