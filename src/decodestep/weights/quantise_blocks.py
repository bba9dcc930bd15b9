"""Quantises values to GGUF's blocks in the native core; csrc/linear/quantise_blocks.h says how."""

from __future__ import annotations

import numpy as np

from decodestep import _native
from decodestep._base.threads import threads
from decodestep.weights.packed import Format, row_bytes


def quantise_blocks(values: np.ndarray, format_: Format) -> np.ndarray:
    """Rows (N, K) of float32 as (N, bytes of a row) uint8. K is a multiple of the format's block; format_: Q4_0, Q5_0, Q8_0,
    Q2_K, Q3_K, Q4_K, Q5_K or Q6_K.

    A block that cannot hold its values, such as NaN, has a scale that is not finite.
    """
    blocks = np.empty((len(values), row_bytes(format_, values.shape[1])), np.uint8)
    _native.quantise_blocks(
        values=np.ascontiguousarray(values, np.float32), format=int(format_), blocks=blocks, threads=threads()
    )
    return blocks
