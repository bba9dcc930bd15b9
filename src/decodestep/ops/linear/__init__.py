"""linear: activations times a weight, straight from the format that the weight is stored in."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from decodestep._base import arrays
from decodestep._base.checks import require, require_dtype
from decodestep._base.dispatch import choose, run
from decodestep.ops.linear import cpu, reference
from decodestep.weights.linear_panels import LinearPanels as LinearPanels
from decodestep.weights.packed import Format as Format
from decodestep.weights.packed import PackedWeight as PackedWeight

_OP = "linear"


def linear(x: Any, weight: Any, *, backend: str = "auto") -> Any:
    """Multiplies activations by a weight, without a bias.

        y[t, n] = sum over k of x[t, k] * weight[k, n]

    x: (T, K), or (K,) for a single token; float32 or float64.
    weight: a `PackedWeight` or a `LinearPanels` of shape (K, N), or a (K, N) array of float32, float64, float16 or bfloat16.
        With a `LinearPanels` in a block format x is rounded to bytes first, each 32 values to a unit of their own.
    backend: "auto", "cpu" or "reference". "cpu" serves float32 x and a `PackedWeight` or `LinearPanels`; "auto" takes
        "reference" for the others, and there float64 x gives a float64 result.

    Returns y, (T, N) or (N,), in x's dtype and kind; zeros where K is 0.
    Raises ValueError for another dtype, rank or K.

    Notes: weights are widened to float32 and the sum runs in float32, k ascending in 16 lanes that are folded at the
    end. With panels each output is one ascending sum; where x is bytes, of blocks of 32 whose inner sums are exact. A row's
    bits depend neither on the other rows of the call nor on the thread count; they may differ between instruction sets.
    """
    tokens = arrays.view(_OP, "x", x)
    require_dtype(_OP, "x", tokens, (np.float32, np.float64))
    packed = isinstance(weight, PackedWeight | LinearPanels)
    matrix = weight if packed else arrays.view(_OP, "weight", weight)
    if not packed:
        require_dtype(_OP, "weight", matrix, (np.float32, np.float64, np.float16, ml_dtypes.bfloat16))
        require(matrix.ndim == 2, _OP, "weight", "a matrix", matrix)
    require(
        tokens.ndim in (1, 2) and tokens.shape[-1] == matrix.shape[0],
        _OP,
        "x",
        f"of shape (T, {matrix.shape[0]}) or ({matrix.shape[0]},)",
        tokens,
    )
    obstacle = None if packed and tokens.dtype == np.float32 else "needs float32 x and a PackedWeight or LinearPanels"
    backend = choose(_OP, backend, {"cpu": obstacle, "reference": None})
    rows = tokens.reshape(1, -1) if tokens.ndim == 1 else tokens
    y = run(_OP, backend, (cpu if backend == "cpu" else reference).linear, rows, matrix)
    return arrays.like(x, y.reshape(-1) if tokens.ndim == 1 else y)
