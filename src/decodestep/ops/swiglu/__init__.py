"""swiglu: the gate of a Llama feed-forward block."""

from __future__ import annotations

import numpy as np

from decodestep._base import arrays
from decodestep._base.arrays import Array, ArrayT
from decodestep._base.checks import require, require_dtype
from decodestep._base.dispatch import choose
from decodestep._base.profiling import run
from decodestep.ops.swiglu import cpu, reference

_OP = "swiglu"


def swiglu(gate: ArrayT, up: Array, *, backend: str = "auto") -> ArrayT:
    """Multiplies `up` by the SiLU of `gate`, element by element.

        y[t, i] = gate[t, i] / (1 + exp(-gate[t, i])) * up[t, i]

    Args:
        gate: (T, F), float32 or float64; any strides.
        up: of gate's shape and dtype; any strides.
        backend: "auto", "cpu" or "reference"; "cpu" serves float32.

    Returns:
        y, a new array of gate's shape, dtype and kind.

    Raises:
        ValueError: for another dtype or shape.

    Notes:
        At gate = -inf the SiLU is its limit, zero; "cpu" gives -5e-37 for every gate below -88. A NaN stays in its element, and
        an element's bits depend on its own two numbers alone.

    Source:
        Shazeer, GLU Variants Improve Transformer, 2020.
    """
    left, right = arrays.view(_OP, "gate", gate), arrays.view(_OP, "up", up)
    require_dtype(_OP, "gate", left, (np.float32, np.float64))
    require(left.ndim == 2, _OP, "gate", "of shape (T, F)", left)
    require(right.dtype == left.dtype and right.shape == left.shape, _OP, "up", "of gate's shape and dtype", right)
    backend = choose(_OP, backend, {"cpu": None if left.dtype == np.float32 else "needs float32", "reference": None})
    result: ArrayT = arrays.like(gate, run(_OP, backend, (cpu if backend == "cpu" else reference).swiglu, left, right))
    return result
