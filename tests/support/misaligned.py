"""Arrays whose memory is not aligned to their items, which NumPy allows and kernels do not."""

from __future__ import annotations

import numpy as np


def misaligned(array: np.ndarray) -> np.ndarray:
    """A copy whose memory starts one byte off its items' alignment."""
    raw = np.empty(array.nbytes + 1, np.uint8)[1:]
    shifted = raw.view(array.dtype).reshape(array.shape)
    shifted[...] = array
    assert not shifted.flags.aligned
    return shifted
