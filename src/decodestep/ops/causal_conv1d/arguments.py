"""How causal_conv1d's arguments fit together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from decodestep._base.arrays import Array
from decodestep._base.checks import refuse, require, require_choice, require_dtype
from decodestep._base.state_rows import require_state

OP = "causal_conv1d"


class Arrays(NamedTuple):
    """The arrays of a call, as they were given or as NumPy sees them."""

    x: Array
    weight: Array
    state: Array
    bias: Array | None


def check(arrays: Arrays, activation: object) -> None:
    x, weight, state, bias = arrays
    require_dtype(OP, "x", x, (np.float32, np.float64))
    require(x.ndim == 2, OP, "x", "of shape (T, C)", x)
    channels = x.shape[1]
    if weight.dtype != x.dtype or weight.ndim != 2 or weight.shape[0] != channels or weight.shape[1] < 1:
        refuse(OP, "weight", f"{x.dtype} of shape ({channels}, K) with K >= 1", weight)
    if bias is not None and (bias.dtype != x.dtype or bias.shape != (channels,)):
        refuse(OP, "bias", f"{x.dtype} of shape {channels}", bias)
    require_choice(OP, "activation", activation, (None, "silu"))
    require_state(OP, state, (weight.shape[1] - 1, channels), x.dtype)
