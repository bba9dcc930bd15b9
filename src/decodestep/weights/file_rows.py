"""A weight in files, whose rows are read on demand, on all threads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from decodestep import _native
from decodestep._base.memory import new_bytes
from decodestep._base.threads import threads
from decodestep.errors import DecodestepError
from decodestep.weights.lazy_rows import LazyRows
from decodestep.weights.packed import Format, PackedWeight


class FileRowsError(DecodestepError, ValueError):
    """A weight's rows cannot be used: their file cannot be read or has become shorter, or one of their scales is not finite."""


class FilePart(NamedTuple):
    """The next `rows` rows of a weight: in the file descriptor `file`, from byte `at` on. name: for messages."""

    file: int
    at: int
    rows: int
    name: str


class FileRows(LazyRows):
    """The rows of a (K, N) weight in open files, in a format of `PackedWeight`; inputs: K, of whole blocks.

    `whole` and `pack` raise FileRowsError.
    """

    def __init__(self, parts: Sequence[FilePart], format_: Format, inputs: int, row_bytes: int) -> None:
        super().__init__(format_, inputs, sum(part.rows for part in parts))
        self.parts, self._row_bytes = tuple(parts), row_bytes

    @classmethod
    def stack(cls, *weights: FileRows) -> FileRows:
        """The rows of several weights, one weight after the other; all must have the same format and K."""
        first = weights[0]
        return cls([part for weight in weights for part in weight.parts], first.format, first.inputs, first._row_bytes)

    def tensors(self) -> Iterator[FileRows]:
        """The parts, each as a weight of its own."""
        return (FileRows([part], self.format, self.inputs, self._row_bytes) for part in self.parts)

    def whole(self) -> PackedWeight:
        rows = new_bytes(self.shape[1] * self._row_bytes).reshape(self.shape[1], self._row_bytes)
        self._read(rows=rows)
        return PackedWeight(rows, self.format, self.inputs)

    def pack(self, format_: Format, panels: np.ndarray) -> None:
        self._read(panels=panels, format_=format_)

    def _read(self, rows: np.ndarray | None = None, panels: np.ndarray | None = None, format_: Format = Format.F32) -> None:
        problem = _native.read_file_rows(
            parts=np.array([part[:3] for part in self.parts], np.int64),
            format=int(self.format),
            inputs=self.inputs,
            memory=rows,
            panels=panels,
            panel_format=int(format_),
            threads=threads(),
        )
        if problem is None:
            return
        number, row, error = problem
        name = self.parts[number].name
        if row >= 0:
            raise FileRowsError(f"{name} must have finite scales; got NaN or infinity in row {row}")
        raise FileRowsError(f"{name} cannot be read: {os.strerror(error) if error else 'the file has become shorter'}")
