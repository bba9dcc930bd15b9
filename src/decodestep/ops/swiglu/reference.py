"""swiglu as its formula."""

from __future__ import annotations

import numpy as np


def swiglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):  # where exp(-gate) overflows, the result is the limit, zero; at -inf it would be NaN
        silu = np.where(np.isneginf(gate), gate.dtype.type(0), gate / (1 + np.exp(-gate)))
        return silu * up
