"""rms_norm: root-mean-square normalisation."""

from __future__ import annotations

import numpy as np

from decodestep._base import arrays
from decodestep._base.arrays import Array, ArrayT
from decodestep._base.checks import is_finite, refuse, require, require_dtype
from decodestep._base.dispatch import choose
from decodestep._base.profiling import run
from decodestep.ops.rms_norm import cpu, reference

_OP = "rms_norm"


def rms_norm(x: ArrayT, gamma: Array, *, eps: float = 1e-5, backend: str = "auto") -> ArrayT:
    """Divides every row by its root mean square and scales the columns.

        y[t, i] = x[t, i] / sqrt(mean over j of x[t, j]^2 + eps) * gamma[i]

    Args:
        x: (T, K), float32 or float64; any strides.
        gamma: (K,), x's dtype.
        eps: finite and >= 0; added inside the square root.
        backend: "auto", "cpu" or "reference"; "cpu" serves float32.

    Returns:
        y, a new array of x's shape, dtype and kind.

    Raises:
        ValueError: for another dtype, shape or eps.

    Notes:
        The order of the sum of squares is not specified, but a row's bits depend on that row alone. With eps 0 a row of
        zeros gives NaN. A NaN makes its row NaN and no other.

    Source:
        Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
    """
    rows, scale = arrays.view(_OP, "x", x), arrays.view(_OP, "gamma", gamma)
    require_dtype(_OP, "x", rows, (np.float32, np.float64))
    require(rows.ndim == 2, _OP, "x", "of shape (T, K)", rows)
    if scale.dtype != rows.dtype or scale.shape != rows.shape[1:]:
        refuse(_OP, "gamma", f"{rows.dtype} of shape {rows.shape[1]}", scale)
    if not (is_finite(eps) and eps >= 0):
        refuse(_OP, "eps", "a finite number >= 0", eps)
    backend = choose(_OP, backend, {"cpu": None if rows.dtype == np.float32 else "needs float32", "reference": None})
    y = run(_OP, backend, (cpu if backend == "cpu" else reference).rms_norm, rows, scale, float(eps))
    result: ArrayT = arrays.like(x, y)
    return result
