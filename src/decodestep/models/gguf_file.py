"""Reading GGUF files: the header in one bounds-checked pass, the tensors as views of the mapped file.

The tables of types and block sizes come from the `gguf` package. Its own reader is not used: it makes several NumPy objects for
every string of the vocabulary (seconds for 10^5 tokens) and trusts the counts in the file.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from decodestep.models.errors import ModelError

_SCALARS = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.BOOL: "<?",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT64: "<d",
}
_MAX_DEPTH = 4  # of arrays inside arrays


@dataclass(frozen=True)
class Tensor:
    """A tensor as the file stores it."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]  # in NumPy's order of axes, the reverse of the file's
    data: np.ndarray  # its bytes, uint8, one axis; a view of the mapped file


class GgufFile:
    """A GGUF file of version 2 or 3, little-endian: `metadata` by key and `tensors` by name.

    Raises ModelError for a file that cannot be opened, is truncated or corrupt, or of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as opened:
                self._map = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelError(f"{path}: cannot be opened: {_reason(path, error)}") from error
        self._data = np.frombuffer(self._map, np.uint8)
        self._view = self._data.data
        self._at = 0
        if bytes(self._view[:4]) != b"GGUF":
            raise ModelError(f"{path}: not a GGUF file")
        self._at = 4
        version = self._number("<I")
        if version not in (2, 3):
            raise ModelError(f"{path}: GGUF version {version} is not supported (2 and 3 are)")
        tensors, pairs = self._number("<Q"), self._number("<Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(self._count(pairs, 13)):
            key = self._string()
            self.metadata[key] = self._value(self._number("<I"))
        headers = [self._tensor_header() for _ in range(self._count(tensors, 24))]
        alignment = self.metadata.get("general.alignment", 32)
        if not (isinstance(alignment, int) and alignment > 0):
            raise ModelError(f"{path}: general.alignment is {alignment!r}")
        start = -(-self._at // alignment) * alignment
        self.tensors = {name: self._tensor(name, shape, kind, start + at) for name, shape, kind, at in headers}

    def forget(self, data: np.ndarray) -> None:
        """Releases the memory of the pages that lie inside this part of the file; they are read again when needed.

        data: a view of the file; any other array is ignored.
        """
        at = data.ctypes.data - self._data.ctypes.data
        if not (hasattr(mmap, "MADV_DONTNEED") and 0 <= at < len(self._data)):
            return
        first, end = -(-at // mmap.PAGESIZE) * mmap.PAGESIZE, (at + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, end - first)

    def _need(self, size: int) -> int:
        """Advances by `size` bytes and returns the offset of the first."""
        at = self._at
        if size > len(self._view) - at:
            raise ModelError(f"{self.path}: truncated or corrupt: {size} bytes expected at offset {at} of {len(self._view)}")
        self._at = at + size
        return at

    def _count(self, count: int, least: int) -> int:
        """A count from the file, refused if that many items of at least `least` bytes do not fit into the rest of it."""
        if count * least > len(self._view) - self._at:
            raise ModelError(f"{self.path}: truncated or corrupt: {count} items expected at offset {self._at}")
        return count

    def _number(self, form: str) -> Any:
        return struct.unpack_from(form, self._view, self._need(struct.calcsize(form)))[0]

    def _string(self) -> str:
        size = self._number("<Q")
        at = self._need(size)
        try:
            return str(self._view[at : at + size], "utf-8")
        except UnicodeDecodeError as error:
            raise ModelError(f"{self.path}: corrupt: the string at offset {at} is not UTF-8") from error

    def _value(self, number: int, depth: int = 0) -> Any:
        try:
            kind = GGUFValueType(number)
        except ValueError as error:
            raise ModelError(f"{self.path}: corrupt: value type {number} at offset {self._at}") from error
        if kind == GGUFValueType.STRING:
            return self._string()
        if kind != GGUFValueType.ARRAY:
            return self._number(_SCALARS[kind])
        item, count = self._number("<I"), self._number("<Q")
        if item == GGUFValueType.STRING:
            return [self._string() for _ in range(self._count(count, 8))]
        if item == GGUFValueType.ARRAY:
            if depth == _MAX_DEPTH:
                raise ModelError(f"{self.path}: corrupt: arrays nested at offset {self._at}")
            return [self._value(item, depth + 1) for _ in range(self._count(count, 12))]
        form = _SCALARS.get(item)
        if form is None:
            raise ModelError(f"{self.path}: corrupt: value type {item} at offset {self._at}")
        size = struct.calcsize(form)
        at = self._need(self._count(count, size) * size)
        return np.frombuffer(self._view, form, count, at).tolist()

    def _tensor_header(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        rank = self._count(self._number("<I"), 8)
        shape = tuple(self._number("<Q") for _ in range(rank))
        return name, shape[::-1], self._number("<I"), self._number("<Q")

    def _tensor(self, name: str, shape: tuple[int, ...], number: int, at: int) -> Tensor:
        try:
            kind = GGMLQuantizationType(number)
        except ValueError as error:
            raise ModelError(f"{self.path}: tensor {name} has the unknown type {number}") from error
        values, size = GGML_QUANT_SIZES[kind]
        if not shape or shape[-1] % values:
            raise ModelError(f"{self.path}: corrupt: tensor {name} of type {kind.name} has shape {shape}")
        length = math.prod(shape) // values * size
        if at + length > len(self._data):
            raise ModelError(f"{self.path}: truncated: tensor {name} ends at byte {at + length} of {len(self._data)}")
        return Tensor(name, kind, shape, self._data[at : at + length])


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "the file is empty" if path.is_file() and path.stat().st_size == 0 else str(error)
