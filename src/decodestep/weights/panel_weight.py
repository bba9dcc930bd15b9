"""A weight of the prolog rearranged once, so that the native core reads it from end to end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from decodestep._base import arrays
from decodestep._base.arrays import BFLOAT16, Array
from decodestep._base.checks import require
from decodestep._base.memory import new_bytes

_DTYPES = (np.dtype(np.float32), BFLOAT16, np.dtype(np.int8))
_PANEL, _BLOCK = 32, 32  # columns of a panel, and to how many inputs it is padded, as in csrc/linear/linear_panels.h
_GROUP_BYTES = 4
_INT8_OFFSET = np.uint8(128)


@dataclass(frozen=True, eq=False)
class PanelWeight:
    """A (K, N) weight, or H of them as (H, K, N), in panels of 32 columns. `from_array` makes one.

        data = for every matrix: for every 32 columns: for every 4 bytes of inputs: those of column 0, 1, ... 31

    Attributes:
        data: one axis, contiguous, of the weight's dtype, float32, bfloat16 or int8. A group is 4 bytes of one column's inputs:
            1, 2 or 4 values; int8 ones are stored as the bytes that are 128 above them. K and N are padded with zeros to
            multiples of 32. In float32 and bfloat16 these are the panels of `LinearPanels`.
        shape: of the weight, (K, N) or (H, K, N).
    """

    data: np.ndarray
    shape: tuple[int, ...]

    @classmethod
    def from_array(cls, weight: Array, shape: tuple[int, int] | None = None) -> PanelWeight:
        """Copies a weight into panels, on all threads.

        Args:
            weight: float32, bfloat16 or int8, a NumPy array or torch tensor of any strides and no empty axis: (K, N), (H, K,
                N), or the NZ storage (columns / c0, rows / 16, 16, c0) of one matrix (see `to_nz`).
            shape: (K, N), only with NZ storage, to cut its padding off; None keeps the padding.

        Raises:
            ValueError: for another dtype or shape.
        """
        from decodestep.weights.native import pack_columns  # native code, only needed here

        op, a = "PanelWeight", arrays.view("PanelWeight", "weight", weight)
        ok = a.dtype in _DTYPES and a.ndim in (2, 3, 4) and all(a.shape)
        require(ok, op, "weight", "a matrix, matrices or NZ storage with no axis of 0, of float32, bfloat16 or int8", a)
        whole = (a.shape[1] * a.shape[2], a.shape[0] * a.shape[3]) if a.ndim == 4 else a.shape
        if shape is not None:
            fits = len(shape) == 2 and a.ndim == 4 and 0 < shape[0] <= whole[0] and 0 < shape[1] <= whole[1]
            require(fits, op, "shape", f"of a matrix within NZ storage of {whole}", shape)
            whole = shape
        inputs, outputs = whole[-2:]
        count = whole[0] if len(whole) == 3 else 0
        data = new_bytes(max(count, 1) * _packed_bytes(inputs, outputs, a.itemsize)).view(a.dtype)
        plain = np.ascontiguousarray(a.reshape(a.shape[0], -1, a.shape[3]) if a.ndim == 4 else a)
        pack_columns(plain, inputs, outputs, count, data)
        return cls(data, tuple(whole))

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.data.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def dense(self) -> np.ndarray:
        """The weight as an array of its shape and dtype, a copy."""
        *count, inputs, outputs = self.shape
        data = (self.data.view(np.uint8) ^ _INT8_OFFSET).view(np.int8) if self.dtype == np.int8 else self.data
        group = _GROUP_BYTES // self.dtype.itemsize
        groups = -(-inputs // _BLOCK) * _BLOCK // group
        w = data.reshape(*count, -1, groups, _PANEL, group)  # (..., panel, group, column, input of group)
        w = np.moveaxis(w, -4, -2)  # (..., group, column, panel, input of group)
        w = np.moveaxis(w, -1, -3)  # (..., group, input of group, column, panel)
        w = w.swapaxes(-1, -2)  # (..., group, input of group, panel, column)
        w = w.reshape(*count, groups * group, -1)  # (..., input, output), both padded
        return np.ascontiguousarray(w[..., :inputs, :outputs])


def _packed_bytes(inputs: int, outputs: int, itemsize: int) -> int:
    """Bytes of a packed (inputs, outputs) weight."""
    return -(-outputs // _PANEL) * _PANEL * -(-inputs // _BLOCK) * _BLOCK * itemsize
