"""The call into the native core."""

from __future__ import annotations

import numpy as np

from decodestep import _native
from decodestep._base import arrays
from decodestep._base.threads import threads


def swiglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    y = np.empty(gate.shape, np.float32)
    _native.swiglu(gate=arrays.contiguous_rows(gate), up=arrays.contiguous_rows(up), y=y, threads=threads())
    return y
