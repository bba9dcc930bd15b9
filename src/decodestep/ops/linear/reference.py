"""linear as one matrix product."""

from __future__ import annotations

import numpy as np

from decodestep.ops.linear.weight import PackedWeight


def linear(x: np.ndarray, weight: np.ndarray | PackedWeight) -> np.ndarray:
    with np.errstate(all="ignore"):  # infinities and NaN give what IEEE says
        return x @ (weight.dense(x.dtype) if isinstance(weight, PackedWeight) else weight.astype(x.dtype))
