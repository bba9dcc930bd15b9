"""rms_norm as its formula."""

from __future__ import annotations

import numpy as np


def rms_norm(x: np.ndarray, gamma: np.ndarray, eps: float) -> np.ndarray:
    with np.errstate(all="ignore"):  # rows of zeros, squares beyond the type: the results are what IEEE says
        mean = (x * x).sum(axis=-1, keepdims=True) / max(x.shape[-1], 1)
        rms = np.sqrt(mean + np.asarray(eps, x.dtype))
        return x / rms * gamma
