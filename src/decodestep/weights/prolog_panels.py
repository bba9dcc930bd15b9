"""A weight of the prolog rearranged once for the native core, which reads it in one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from decodestep import _native
from decodestep._base import arrays
from decodestep._base.checks import require
from decodestep._base.dispatch import threads

_DTYPES = (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16), np.dtype(np.int8))
_WIDTH, _GROUP_BYTES = 64, 4  # as in csrc/mla_prolog/prolog_panels.h
_LINE = 64


@dataclass(frozen=True, eq=False)
class PanelWeight:
    """A (K, N) weight, or N of them as (N, K, L), in panels of 64 columns; `from_array` makes one.

    data: one contiguous run of the weight's dtype, float32, bfloat16 or int8. A panel is a row of 64 groups for every group of
        4 bytes of inputs (1, 2 or 4 values); what K and the columns lack to whole groups and panels is zeros. In int8 each
        panel begins with 64 int32, -128 times the sum of each column.
    shape: of the weight.
    """

    data: np.ndarray
    shape: tuple[int, ...]

    @classmethod
    def from_array(cls, weight: Any, shape: tuple[int, int] | None = None) -> PanelWeight:
        """Packs a float32, bfloat16 or int8 weight, a copy: (K, N), (N, K, L), or NZ storage (columns / c0, rows / 16, 16, c0)
        of a matrix, of which `shape` cuts the padding off."""
        op, a = "PanelWeight", arrays.view("PanelWeight", "weight", weight)
        ok = a.dtype in _DTYPES and a.ndim in (2, 3, 4) and all(a.shape)
        require(ok, op, "weight", "a matrix, matrices or NZ storage of float32, bfloat16 or int8", a)
        whole = (a.shape[1] * a.shape[2], a.shape[0] * a.shape[3]) if a.ndim == 4 else a.shape
        if shape is not None:
            fits = len(shape) == 2 and a.ndim == 4 and 0 < shape[0] <= whole[0] and 0 < shape[1] <= whole[1]
            require(fits, op, "shape", f"of a matrix within NZ storage of {whole}", str(shape))
            whole = shape
        inputs, outputs = whole[-2:]
        count = whole[0] if len(whole) == 3 else 0
        data = _room(max(count, 1) * _size(inputs, outputs, a.itemsize), a.dtype)
        plain = np.ascontiguousarray(a.reshape(a.shape[0], -1, a.shape[3]) if a.ndim == 4 else a)
        _native.pack_panels(arrays.bits(arrays.contiguous(plain)), inputs, outputs, count, data.view(np.uint8), threads())
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
        """The weight as it was."""
        *count, inputs, outputs = self.shape
        group = _GROUP_BYTES // self.dtype.itemsize
        rows = -(-inputs // group) + (self.dtype.itemsize == 1)
        panels = self.data.reshape(*count, -1, rows, _WIDTH, group)[..., rows - -(-inputs // group) :, :, :]
        matrix = np.moveaxis(panels, -4, -3).swapaxes(-1, -2)  # (groups, panels, group, columns) on the way
        matrix = np.moveaxis(matrix, -2, -3).reshape(*count, -1, panels.shape[-4] * _WIDTH)
        return np.ascontiguousarray(matrix[..., :inputs, :outputs])


def _size(inputs: int, outputs: int, itemsize: int) -> int:
    """Bytes of a packed (inputs, outputs) weight."""
    rows = -(-inputs * itemsize // _GROUP_BYTES) + (itemsize == 1)
    return -(-outputs // _WIDTH) * rows * _WIDTH * _GROUP_BYTES


def _room(size: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Memory that begins with a cache line, so that no vector of weights lies in two."""
    buffer = np.empty(size + _LINE, np.uint8)
    start = -buffer.ctypes.data % _LINE
    return buffer[start : start + size].view(dtype)
