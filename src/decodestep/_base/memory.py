"""Memory that begins at a cache line."""

from __future__ import annotations

import numpy as np

_CACHE_LINE = 64


def new_bytes(size: int) -> np.ndarray:
    """uint8 (size,), not initialised, from the beginning of a cache line on.

    No vector then lies in two lines. And the system copies a file into it four times as fast as into memory from NumPy on AMD's
    Zen 3: that begins 16 bytes after a page, and each load of a copy from a page's beginning waits for the store before it.
    """
    space = np.empty(size + _CACHE_LINE, np.uint8)
    return space[-space.ctypes.data % _CACHE_LINE :][:size]
