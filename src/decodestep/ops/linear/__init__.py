"""linear: activations times a weight in its stored format."""

from __future__ import annotations

import numpy as np

from decodestep._base import arrays
from decodestep._base.arrays import Array, ArrayT
from decodestep._base.checks import require, require_dtype
from decodestep._base.dispatch import choose
from decodestep._base.profiling import run
from decodestep.ops.linear import cpu, reference
from decodestep.weights.linear_panels import LinearPanels as LinearPanels
from decodestep.weights.packed import Format as Format
from decodestep.weights.packed import PackedWeight as PackedWeight

_OP = "linear"


def linear(x: ArrayT, weight: Array | PackedWeight | LinearPanels, *, backend: str = "auto") -> ArrayT:
    """Multiplies activations by a weight in its stored format, without bias.

        y[t, n] = sum over k of x[t, k] * weight[k, n]

    Args:
        x: (T, K), or (K,) for a single token; float32 or float64, any strides.
        weight: (K, N): a `PackedWeight` (rows of a GGUF format), a `LinearPanels` (the same packed for speed), or an array of
            float32, float64, float16 or bfloat16. With a `LinearPanels` in a block format, x is quantised first: each 32 values
            of a row become int8 times a scale; see the class.
        backend: "auto", "cpu" or "reference". "cpu" serves float32 x with a `PackedWeight` or `LinearPanels`; "auto" chooses
            "reference" for everything else.

    Returns:
        y, a new array (T, N) or (N,), of x's dtype and kind; zeros if K is 0.

    Raises:
        ValueError: for another dtype, rank or K.

    Notes:
        Weights are widened to x's dtype and sums are taken in it. "cpu" adds k in ascending order, in 16 lanes that are
        added at the end; with panels in one ascending sum, over exact integer sums of 32 products where x is quantised (those
        of blocks of 256 are added up by block first), residuals last. NaN and infinities stay in their row. With "cpu" a row's
        bits depend neither on the other rows of the call nor on the thread count, and are the same on every instruction set
        with a fused multiply-add; "reference" is NumPy's product, whose order of sums may depend on the number of rows.

    Source:
        The block formats and their rounding of activations are GGUF's and ggml's; the residual is this library's own.
    """
    tokens = arrays.view(_OP, "x", x)
    require_dtype(_OP, "x", tokens, (np.float32, np.float64))
    matrix: PackedWeight | LinearPanels | np.ndarray
    if packed := isinstance(weight, PackedWeight | LinearPanels):
        matrix = weight
    else:
        matrix = arrays.view(_OP, "weight", weight)
        require_dtype(_OP, "weight", matrix, (np.float32, np.float64, np.float16, arrays.BFLOAT16))
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
    result: ArrayT = arrays.like(x, y.reshape(-1) if tokens.ndim == 1 else y)
    return result
