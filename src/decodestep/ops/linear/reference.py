"""linear as one matrix product."""

from __future__ import annotations

import numpy as np

from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import PackedWeight


def linear(x: np.ndarray, weight: np.ndarray | PackedWeight | LinearPanels) -> np.ndarray:
    with np.errstate(all="ignore"):  # infinities and NaN give what IEEE says
        if isinstance(weight, LinearPanels):
            seen = quantised(x) if weight.reads_bytes else x
            return seen @ weight.rows().dense(x.dtype)
        return x @ (weight.dense(x.dtype) if isinstance(weight, PackedWeight) else weight.astype(x.dtype))


def quantised(x: np.ndarray) -> np.ndarray:
    """Activations (T, K) as a product with blocks sees them: each 32 of them as integers in [-127, 127] times a unit.

    The unit is their largest magnitude / 127. Of the block of a row that has the largest unit, the first one of equals, what
    rounding leaves is rounded in the same way, with a unit of its own. All this is found in float32: ties must fall alike for
    every type. Below 1e-36 a block counts as zeros.
    """
    blocks = x.astype(np.float32).reshape(len(x), -1, 32)
    with np.errstate(all="ignore"):
        integers, unit = _rounded(blocks)
        rest_integers, rest_unit = _rounded(blocks - unit * integers)
        seen = unit.astype(x.dtype) * integers.astype(x.dtype)
        rest = rest_unit.astype(x.dtype) * rest_integers.astype(x.dtype)
    if x.shape[1]:
        coarsest = np.arange(len(x)), unit[:, :, 0].argmax(axis=1)
        seen[coarsest] += rest[coarsest]
    return seen.reshape(x.shape)


def _rounded(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The integers, and the value of a unit of each block."""
    most = np.abs(blocks).max(axis=2, keepdims=True, initial=0)
    inverse = np.where(most < 1e-36, np.float32(0), np.float32(127) / most)
    return np.rint(blocks * inverse), most / np.float32(127)
