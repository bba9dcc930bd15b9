"""The order of a paged cache's values, in rows or as NZ.

A cache is (blocks, block size, 1, H). A slot, block * block size + row, names one of its rows. In the modes with NZ each
block is stored as NZ stores a weight (weights/nz.py) whose rows are the block's rows and whose columns are H: value h of row
r is element (h // c0) * block size * c0 + r * c0 + h % c0 of the block. Its shape stays (block size, 1, H).

Source: the cache modes of MlaProlog V1 to V3 (CANN ops-transformer).
"""

from __future__ import annotations

import numpy as np

from decodestep._base import arrays
from decodestep._base.arrays import Array, ArrayT
from decodestep._base.checks import require
from decodestep.weights.nz import fractal_width, require_fractals


def cache_to_nz(cache: ArrayT) -> ArrayT:
    """Copies a PA_BSND cache into the order of PA_NZ.

        block.reshape(-1)[(h // c0) * block size * c0 + r * c0 + h % c0] = row r's value h       for each block

    Args:
        cache: (blocks, block size, 1, H), H a multiple of c0 = 32 / (bytes of a value).

    Returns:
        An array of the same shape, dtype and kind.

    Raises:
        ValueError: for another shape, width or size of a value.
    """
    a = _view_blocks("cache_to_nz", cache)
    n, rows, _, width = a.shape
    c0 = fractal_width(a.itemsize)
    nz = a.reshape(n, rows, width // c0, c0).transpose(0, 2, 1, 3)
    return arrays.like(cache, np.array(nz, order="C").reshape(a.shape))


def cache_from_nz(cache: ArrayT) -> ArrayT:
    """Copies a PA_NZ cache into the order of PA_BSND, rows one after the other: the inverse of `cache_to_nz`.

    Args:
        cache: (blocks, block size, 1, H), H a multiple of c0 = 32 / (bytes of a value).

    Returns:
        An array of the same shape, dtype and kind.

    Raises:
        ValueError: for another shape, width or size of a value.
    """
    a = _view_blocks("cache_from_nz", cache)
    n, rows, _, width = a.shape
    c0 = fractal_width(a.itemsize)
    nd = a.reshape(n, width // c0, rows, c0).transpose(0, 2, 1, 3)
    return arrays.like(cache, np.array(nd, order="C").reshape(a.shape))


def row_index(slots: np.ndarray, cache: np.ndarray, nz: bool) -> tuple[np.ndarray, ...]:
    """The index with which cache[index] is the rows `slots`, (len(slots), H), of a paged cache of any strides."""
    _, block_size, _, width = cache.shape
    block, offset = np.divmod(slots, block_size)
    if not nz:
        return block, offset, np.zeros_like(offset)
    h, c0 = np.arange(width), fractal_width(cache.itemsize)
    inside = (h // c0) * (block_size * c0) + offset[:, None] * c0 + h % c0
    return block[:, None], inside // width, np.zeros_like(inside), inside % width


def _view_blocks(op: str, cache: Array) -> np.ndarray:
    a = arrays.view(op, "cache", cache)
    require(a.ndim == 4 and a.shape[2] == 1, op, "cache", "of shape (blocks, block size, 1, H)", a)
    require_whole_fractals(op, "cache", a)
    return a


def require_whole_fractals(op: str, arg: str, cache: np.ndarray) -> None:
    """The rows of a cache divide into rows of fractals."""
    c0 = require_fractals(op, arg, cache)
    require(cache.shape[-1] % c0 == 0, op, arg, f"of a width that is a multiple of {c0}", cache)
