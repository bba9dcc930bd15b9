"""The bias of a product, which `linear` leaves to its callers."""

from __future__ import annotations

import numpy as np


def with_bias(y: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """y (..., N) plus a bias (N,) in y's dtype; y itself without one."""
    return y if bias is None else y + bias.astype(y.dtype, copy=False)
