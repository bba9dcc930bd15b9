"""How selective_state_update's arguments fit together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from decodestep._base.arrays import Array
from decodestep._base.checks import refuse, require, require_dtype, require_shape

OP = "selective_state_update"


class Arrays(NamedTuple):
    """The arrays of a call, as they were given or as NumPy sees them."""

    x: Array
    dt: Array
    a: Array
    b: Array
    c: Array
    d: Array | None
    dt_bias: Array | None
    state: Array


def check(arrays: Arrays) -> None:
    """Refuses arrays other than `state` that do not fit together."""
    x, dt, a, b, c, d, dt_bias, _ = arrays
    require_dtype(OP, "x", x, (np.float32, np.float64))
    for name, array in (("dt", dt), ("a", a), ("b", b), ("c", c), ("d", d), ("dt_bias", dt_bias)):
        if array is not None:
            require_dtype(OP, name, array, (x.dtype,))
    require(x.ndim == 3, OP, "x", "of shape (T, H, P)", x)
    tokens, heads, _ = x.shape
    require_shape(OP, "dt", dt, (tokens, heads))
    if b.ndim != 3 or len(b) != tokens or b.shape[1] < 1 or heads % b.shape[1]:
        refuse(OP, "b", f"of shape ({tokens}, G, N), G a divisor of {heads}", b)
    require_shape(OP, "c", c, b.shape)
    for name, array in (("a", a), ("d", d), ("dt_bias", dt_bias)):
        if array is not None:
            require_shape(OP, name, array, (heads,))
