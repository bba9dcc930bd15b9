"""causal_conv1d as its formula."""

from __future__ import annotations

import numpy as np

from decodestep._base.state_rows import StateRows
from decodestep.ops.causal_conv1d.arguments import Arrays


def convolve(given: Arrays, silu: bool, rows: StateRows) -> np.ndarray:
    """The results; writes to the state."""
    x, weight, state, bias = given
    y = np.empty(x.shape, x.dtype)
    kept = state.shape[1]
    with np.errstate(all="ignore"):
        for tokens, read, written in rows:
            u = np.concatenate([state[read], x[tokens]])
            count = len(u) - kept
            total = np.zeros(x.shape[1:], x.dtype) if bias is None else bias
            for j in range(kept + 1):
                total = total + weight[:, j] * u[j : j + count]
            y[tokens] = _silu(total) if silu else total
            state[written] = u[count:]
    return y


def _silu(x: np.ndarray) -> np.ndarray:
    return np.where(np.isneginf(x), x.dtype.type(0), x / (1 + np.exp(-x)))  # at -inf the limit
