"""A weight of a type without a kernel, widened to float32 a piece at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from decodestep.weights.lazy_rows import LazyRows
from decodestep.weights.linear_panels import PANEL, packed_bytes
from decodestep.weights.native import pack_linear_panels
from decodestep.weights.packed import Format, PackedWeight


class WidenedRows(LazyRows):
    """The rows of a (K, N) weight as float32.

    pieces: pieces() gives the rows from the first to the last, in float32 matrices (any number of rows, K).
    inputs, outputs: K and N.
    """

    def __init__(self, pieces: Callable[[], Iterator[np.ndarray]], inputs: int, outputs: int) -> None:
        super().__init__(Format.F32, inputs, outputs)
        self._pieces = pieces

    def values(self) -> np.ndarray:
        """All rows, (N, K)."""
        rows, at = np.empty((0, self.inputs), np.float32), 0
        for piece in self._pieces():
            if len(piece) == self.shape[1]:
                return piece
            if not at:
                rows = np.empty(self.shape[::-1], np.float32)
            rows[at : at + len(piece)] = piece
            at += len(piece)
        return rows

    def whole(self) -> PackedWeight:
        return _packed(self.values())

    def pack(self, format_: Format, panels: np.ndarray) -> None:
        panel_bytes = packed_bytes(format_, self.inputs, PANEL)
        left, at = np.empty((0, self.inputs), np.float32), 0  # rows that do not fill a panel yet
        for piece in self._pieces():
            rows = np.concatenate([left, piece]) if len(left) else piece
            full = len(rows) // PANEL * PANEL
            end = at + full // PANEL * panel_bytes
            pack_linear_panels(_packed(rows[:full]), format_, panels[at:end])
            left, at = rows[full:].copy(), end
        pack_linear_panels(_packed(left), format_, panels[at:])


def _packed(rows: np.ndarray) -> PackedWeight:
    return PackedWeight(rows.view(np.uint8), Format.F32, rows.shape[1])
