"""The call into the native core."""

from __future__ import annotations

import numpy as np

from decodestep import _native
from decodestep._base import arrays
from decodestep._base.state_rows import StateRows, in_rows, put_back
from decodestep._base.threads import threads


def update(
    x: np.ndarray,
    dt: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    d: np.ndarray | None,
    dt_bias: np.ndarray | None,
    state: np.ndarray,
    rows: StateRows,
) -> np.ndarray:
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
