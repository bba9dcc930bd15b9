"""The call into the native core."""

from __future__ import annotations

import numpy as np

from decodestep import _native
from decodestep._base import arrays
from decodestep._base.state_rows import StateRows, in_rows, put_back
from decodestep._base.threads import threads
from decodestep.ops.selective_state_update.arguments import Arrays


def update(given: Arrays, rows: StateRows) -> np.ndarray:
    """The results; writes to the state."""
    x, dt, a, b, c, d, dt_bias, state = given
    y = np.empty(x.shape, np.float32)
    held = in_rows(state)
    _native.selective_state_update(
        x=in_rows(x),
        dt=in_rows(dt[..., None]),
        a=arrays.contiguous(a),
        b=in_rows(b),
        c=in_rows(c),
        d=None if d is None else arrays.contiguous(d),
        dt_bias=None if dt_bias is None else arrays.contiguous(dt_bias),
        state=held,
        starts=rows.starts,
        read=rows.read,
        written=rows.written,
        y=y,
        threads=threads(),
    )
    put_back(held, state, rows)
    return y
