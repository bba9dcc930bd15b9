"""linear as one matrix product."""

from __future__ import annotations

import numpy as np

from decodestep.ops.linear.panels import LinearPanels
from decodestep.ops.linear.weight import PackedWeight


def linear(x: np.ndarray, weight: np.ndarray | PackedWeight | LinearPanels) -> np.ndarray:
    with np.errstate(all="ignore"):  # infinities and NaN give what IEEE says
        if isinstance(weight, LinearPanels):
            seen = quantised(x) if weight.reads_bytes else x
            return seen @ weight.rows().dense(x.dtype)
        return x @ (weight.dense(x.dtype) if isinstance(weight, PackedWeight) else weight.astype(x.dtype))


def quantised(x: np.ndarray) -> np.ndarray:
    """Activations (T, K) as a product with blocks sees them: each 32 of them as integers in [-127, 127] times a unit.

    The unit is their largest magnitude / 127 and is found in float32, as is what is rounded: a tie must fall alike for every
    type. Below 1e-36 a block counts as zeros.
    """
    blocks = x.astype(np.float32).reshape(len(x), -1, 32)
    most = np.abs(blocks).max(axis=2, keepdims=True)
    with np.errstate(all="ignore"):
        inverse = np.where(most < 1e-36, np.float32(0), np.float32(127) / most)
        unit = most / np.float32(127)
        return (unit.astype(x.dtype) * np.rint(blocks * inverse).astype(x.dtype)).reshape(x.shape)
