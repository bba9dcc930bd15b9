"""The call into the native core."""

from __future__ import annotations

import numpy as np

from decodestep import _native
from decodestep._base import arrays
from decodestep._base.state_rows import StateRows, in_rows, put_back
from decodestep._base.threads import threads
from decodestep.ops.causal_conv1d.arguments import Arrays


def convolve(given: Arrays, silu: bool, rows: StateRows) -> np.ndarray:
    """The results; writes to the state."""
    x, weight, state, bias = given
    y = np.empty(x.shape, np.float32)
    held = in_rows(state)
    _native.causal_conv1d(
        x=arrays.contiguous_rows(x),
        taps=arrays.contiguous_rows(weight.T),
        bias=None if bias is None else arrays.contiguous(bias),
        silu=silu,
        state=held,
        starts=rows.starts,
        read=rows.read,
        written=rows.written,
        y=y,
        threads=threads(),
    )
    put_back(held, state, rows)
    return y
