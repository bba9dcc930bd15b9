"""The call into the native core."""

from __future__ import annotations

import numpy as np

from decodestep import _native
from decodestep._base import arrays
from decodestep._base.threads import threads


def rms_norm(x: np.ndarray, gamma: np.ndarray, eps: float) -> np.ndarray:
    y = np.empty(x.shape, np.float32)
    _native.rms_norm(x=arrays.contiguous_rows(x), gamma=arrays.contiguous(gamma), eps=eps, alpha=1.0, y=y, threads=threads())
    return y
