"""Quantises values to K-quants in the native core; csrc/linear/quantise_k_blocks.h says how."""

from __future__ import annotations

import numpy as np

from decodestep import _native
from decodestep._base.threads import threads
from decodestep.weights.packed import Format, row_bytes

_VALUES = 256  # of a block


def quantise_k_blocks(values: np.ndarray, format_: Format) -> np.ndarray:
    """Rows (N, K) of float32 as (N, bytes of a row) uint8. K is a multiple of 256; format_: Q4_K, Q5_K or Q6_K.

    A block that cannot hold its values, such as NaN, has an infinite scale.
    """
    rows, width = values.shape
    blocks = np.empty((rows, row_bytes(format_, width)), np.uint8)
    _native.quantise_k_blocks(
        values=np.ascontiguousarray(values, np.float32).reshape(-1, _VALUES),
        format=int(format_),
        blocks=blocks.reshape(-1, row_bytes(format_, _VALUES)),
        threads=threads(),
    )
    return blocks
