"""NZ, the storage order of the Ascend matrix unit: a matrix as a grid of fractals, 16 rows by 32 bytes each.

A row of a fractal holds c0 = 32 / (bytes of a value) values: 8 float32, 16 bfloat16, 32 int8. A (K, N) weight is stored as
(N / c0, K / 16, 16, c0), so that value (k, n) is element (n // c0) * K * c0 + k * c0 + n % c0: c0 columns of all K rows, then
the next c0 columns. K and N are padded with zeros to multiples of 16 and c0.

Source: Ascend FRACTAL_NZ (ACL format 29).
"""

from __future__ import annotations

import numpy as np

from decodestep._base import arrays
from decodestep._base.arrays import ArrayT
from decodestep._base.checks import require

_FRACTAL_ROWS, _FRACTAL_ROW_BYTES = 16, 32


def fractal_width(itemsize: int) -> int:
    """c0: the values in one row of a fractal."""
    return _FRACTAL_ROW_BYTES // itemsize


def require_fractals(op: str, arg: str, array: np.ndarray) -> int:
    """c0 of an array; ValueError for a dtype whose values do not fill the row of a fractal."""
    size = array.itemsize
    ok = size > 0 and _FRACTAL_ROW_BYTES % size == 0
    require(ok, op, arg, "of a dtype of 1, 2, 4, 8, 16 or 32 bytes", array)
    return fractal_width(size)


def nz_shape(shape: tuple[int, int], itemsize: int) -> tuple[int, int, int, int]:
    """The shape of the storage of a (K, N) weight."""
    c0 = fractal_width(itemsize)
    return -(-shape[1] // c0), -(-shape[0] // _FRACTAL_ROWS), _FRACTAL_ROWS, c0


def to_nz(weight: ArrayT) -> ArrayT:
    """Copies a (K, N) weight into NZ storage.

        storage[n // c0, k // 16, k % 16, n % c0] = weight[k, n]          c0 = 32 / (bytes of a value)

    Args:
        weight: a NumPy array or torch tensor of shape (K, N), any strides, a dtype of 1, 2, 4, 8, 16 or 32 bytes.

    Returns:
        (ceil(N / c0), ceil(K / 16), 16, c0) in weight's kind and dtype; elements beyond K and N are zeros.

    Raises:
        ValueError: for another number of axes or size of a value.

    Source:
        Ascend FRACTAL_NZ (ACL format 29).
    """
    a = arrays.view("to_nz", "weight", weight)
    require(a.ndim == 2, "to_nz", "weight", "a matrix", a)
    require_fractals("to_nz", "weight", a)
    columns, rows, _, c0 = shape = nz_shape(a.shape, a.itemsize)
    storage = np.zeros(shape, a.dtype)
    whole = storage.reshape(columns, rows * _FRACTAL_ROWS, c0)
    if a.shape[1] == columns * c0:
        whole[:, : len(a)] = a.reshape(len(a), columns, c0).transpose(1, 0, 2)
    else:
        for i in range(columns):
            part = a[:, i * c0 : (i + 1) * c0]
            whole[i, : len(a), : part.shape[1]] = part
    return arrays.like(weight, storage)


def from_nz(storage: ArrayT, shape: tuple[int, int] | None = None) -> ArrayT:
    """Copies NZ storage back into a (K, N) weight: the inverse of `to_nz`.

    Args:
        storage: (columns, row blocks, 16, c0) as `to_nz` returns it.
        shape: (K, N) of the weight, to cut the padding off; None keeps it, (16 * row blocks, c0 * columns).

    Returns:
        The matrix in storage's kind and dtype, contiguous.

    Raises:
        ValueError: for storage of another shape or size of a value, or a `shape` that would not be padded to it.
    """
    a = arrays.view("from_nz", "storage", storage)
    c0 = require_fractals("from_nz", "storage", a)
    ok = a.ndim == 4 and a.shape[2:] == (_FRACTAL_ROWS, c0)
    require(ok, "from_nz", "storage", f"of shape (N / c0, K / 16, 16, c0), c0 = {c0}", a)
    columns, blocks, rows, _ = a.shape
    full = (blocks * rows, columns * c0)
    if shape is not None:
        require(len(shape) == 2 and nz_shape(shape, a.itemsize) == a.shape, "from_nz", "shape", f"padded to {full}", shape)
    weight = np.array(a.transpose(1, 2, 0, 3), order="C").reshape(full)
    return arrays.like(storage, np.ascontiguousarray(weight[: shape[0], : shape[1]] if shape else weight))
