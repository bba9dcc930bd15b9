"""rms_norm as its formula."""

from __future__ import annotations

import numpy as np


def rms_norm(x: np.ndarray, gamma: np.ndarray, eps: float) -> np.ndarray:
    with np.errstate(all="ignore"):  # rows of zeros, squares that overflow: the results are those of IEEE arithmetic
        mean = (x * x).sum(axis=-1, keepdims=True) / max(x.shape[-1], 1)
        rms = np.sqrt(mean + np.asarray(eps, x.dtype))
        return x / rms * gamma
