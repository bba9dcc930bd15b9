"""Packs, unpacks and quantises weights in the native core. A module of its own, so that their classes need no native code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from decodestep import _native
from decodestep._base import arrays
from decodestep._base.threads import threads
from decodestep.weights.packed import Format, PackedWeight, row_bytes

if TYPE_CHECKING:
    from decodestep.weights.linear_panels import LinearPanels


def pack_linear_panels(weight: PackedWeight, format_: Format, data: np.ndarray) -> None:
    """Writes the panels of `weight` in `format_` to `data`, uint8 of their size."""
    _native.pack_linear_panels(
        w=weight.rows,
        format=int(weight.format),
        inputs=weight.inputs,
        panels=data,
        panel_format=int(format_),
        threads=threads(),
    )


def unpack_linear_panels(panels: LinearPanels, ids: np.ndarray, rows: np.ndarray) -> None:
    """Writes outputs `ids`, int64 in C order, to `rows`, uint8 of as many rows of the panels' format."""
    _native.unpack_linear_panels(
        panels=panels.data,
        format=int(panels.format),
        inputs=panels.inputs,
        outputs=panels.outputs,
        ids=ids,
        rows=rows,
        threads=threads(),
    )


def pack_columns(weight: np.ndarray, inputs: int, outputs: int, count: int, data: np.ndarray) -> None:
    """Packs (inputs, outputs), `count` of them unless it is 0, or NZ storage as (N / c0, rows, c0), into `data`."""
    _native.pack_columns(
        w=arrays.bits(arrays.contiguous(weight)),
        inputs=inputs,
        outputs=outputs,
        count=count,
        to=data.view(np.uint8),
        threads=threads(),
    )


def quantise_blocks(values: np.ndarray, format_: Format) -> np.ndarray:
    """Rows (N, K) of float32 as GGUF's blocks, (N, bytes of a row) uint8; csrc/linear/quantise_blocks.h says how.

    K is a multiple of the format's block; format_: Q4_0, Q5_0, Q8_0,
    Q2_K, Q3_K, Q4_K, Q5_K or Q6_K.

    A block that cannot hold its values, such as NaN, has a scale that is not finite.
    """
    blocks = np.empty((len(values), row_bytes(format_, values.shape[1])), np.uint8)
    _native.quantise_blocks(
        values=np.ascontiguousarray(values, np.float32), format=int(format_), blocks=blocks, threads=threads()
    )
    return blocks
