"""selective_state_update as its loop."""

from __future__ import annotations

import numpy as np

from decodestep._base.state_rows import StateRows
from decodestep.ops.selective_state_update.arguments import Arrays


def update(given: Arrays, rows: StateRows) -> np.ndarray:
    """The results; writes to the state."""
    x, dt, a, b, c, d, dt_bias, state = given
    y = np.empty(x.shape, x.dtype)
    heads = x.shape[1]
    group = np.arange(heads) // max(heads // b.shape[1], 1)
    with np.errstate(all="ignore"):
        raw = dt if dt_bias is None else dt + dt_bias
        step = softplus(raw)
        decay, inputs = np.exp(step * a), step[:, :, None] * x
        for tokens, read, written in rows:
            s = state[read]
            for t in range(tokens.start, tokens.stop):
                s = decay[t][:, None, None] * s + b[t, group][:, :, None] * inputs[t][:, None, :]
                y[t] = np.einsum("hn,hnp->hp", c[t, group], s)
                if d is not None:
                    y[t] += d[:, None] * x[t]
            state[written] = s
    return y


def softplus(x: np.ndarray) -> np.ndarray:
    return np.where(x > 20, x, np.logaddexp(x.dtype.type(0), x))
