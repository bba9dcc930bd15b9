"""Checks the arguments of mla_attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decodestep._base import arrays
from decodestep._base.arrays import BFLOAT16, Array, Integers
from decodestep._base.checks import refuse, require, require_dtype, require_shape
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import PackedWeight

OP = "mla_attention"
STORED = (np.float32, np.float64, np.float16, BFLOAT16, np.int8)


@dataclass(frozen=True)
class Cache:
    """A paged cache (BlockNum, BlockSize, 1, width), and the factors by which its values were multiplied when stored."""

    rows: np.ndarray
    scale: np.ndarray | None  # float32 (width,)

    def read(self, blocks: np.ndarray, length: int, dtype: np.dtype) -> np.ndarray:
        """The first `length` rows of a sequence that lies in `blocks`."""
        _, block_size, _, width = self.rows.shape
        rows = self.rows[blocks].reshape(len(blocks) * block_size, width)[:length].astype(dtype)
        return rows if self.scale is None else rows / self.scale.astype(dtype)


def cache(name: str, value: Array, scale_name: str, scale: Array | None) -> Cache:
    """The cache with its scale, which int8 has and nothing else."""
    rows = arrays.view(OP, name, value)
    require_dtype(OP, name, rows, STORED)
    require(rows.ndim == 4 and rows.shape[2] == 1, OP, name, "of shape (BlockNum, BlockSize, 1, width)", rows)
    if rows.dtype != np.int8:
        if scale is not None:
            refuse(OP, scale_name, f"None beside a {name} of dtype {rows.dtype}", scale)
        return Cache(rows, None)
    if scale is None:
        refuse(OP, scale_name, f"given beside an int8 {name}", "None")
    factors = arrays.view(OP, scale_name, scale)
    require_dtype(OP, scale_name, factors, (np.float32,))
    width = rows.shape[3]
    require(factors.size in (1, width), OP, scale_name, f"one number or {width}", factors)
    return Cache(rows, np.ascontiguousarray(np.broadcast_to(factors.reshape(-1), width)))


def paging(
    block_table: Integers, sequence: Integers | None, lengths: Integers, tokens: int, blocks: int, block_size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """block_table, sequence and lengths as int64; every block that they lead to exists."""
    table = arrays.integers(OP, "block_table", block_table, rank=2)
    rows = np.arange(tokens) if sequence is None else arrays.integers(OP, "sequence", sequence, rank=1)
    seen = arrays.integers(OP, "lengths", lengths, rank=1)
    require_shape(OP, "lengths", seen, (tokens,))
    require_shape(OP, "sequence", rows, (tokens,))
    if tokens == 0:
        return table, rows, seen
    room = table.shape[1] * block_size
    require(
        rows.min() >= 0 and rows.max() < table.shape[0],
        OP,
        "sequence",
        f"in [0, {table.shape[0]})",
        f"{rows.min()} to {rows.max()}",
    )
    require(seen.min() >= 1 and seen.max() <= room, OP, "lengths", f"in [1, {room}]", f"{seen.min()} to {seen.max()}")
    longest = np.zeros(table.shape[0], np.int64)
    np.maximum.at(longest, rows, seen)
    read = np.arange(table.shape[1]) * block_size < longest[:, None]
    if ((table < 0) | (table >= blocks))[read].any():
        refuse(OP, "block_table", f"in [0, {blocks}) where it is read", table)
    return table, rows, seen


def check_value_up(weight: PackedWeight | LinearPanels, heads: int, width: int) -> None:
    """A weight (width, heads * Dv)."""
    require(isinstance(weight, PackedWeight | LinearPanels), OP, "w_uv", "a PackedWeight, a LinearPanels or None", weight)
    inputs, outputs = weight.shape
    unit = 32 if isinstance(weight, LinearPanels) else 1
    rule = f"of shape ({width}, {heads} * Dv)" + (", Dv a multiple of 32" if unit > 1 else "")
    require(inputs == width and outputs > 0 and outputs % (heads * unit) == 0, OP, "w_uv", rule, f"{inputs}x{outputs}")
