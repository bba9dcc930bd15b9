"""rms_norm as its formula."""

from __future__ import annotations

import numpy as np


def rms_norm(x: np.ndarray, gamma: np.ndarray, eps: float) -> np.ndarray:
    with np.errstate(all="ignore"):  # rows of zeros, squares beyond the type: the results are what IEEE says
        rms = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.asarray(eps, x.dtype))
        return x / rms * gamma
