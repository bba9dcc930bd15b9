"""Reads the header of a GGUF file item by item, in one bounds-checked pass.

The `gguf` package's own reader is not used: it makes several NumPy objects for every string of the vocabulary (seconds for 10^5
tokens) and trusts the counts in the file.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from gguf.constants import GGUFValueType

from decodestep.errors import ModelError
from decodestep.files.file_bytes import FileBytes

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
_OF_ITEMS = {np.dtype(form): type_ for type_, form in _SCALARS.items()}
_MAX_DEPTH = 4  # of arrays inside arrays
# What a header may make us hold. Real ones have up to 30 MB and a million strings; each string is a Python object.
_MAX_HEADER = 1 << 28  # bytes
_MAX_ITEMS = 1 << 22  # keys, strings and arrays inside arrays
_CHUNK = 1 << 21  # bytes of the header that are read at once, at least
_LENGTH = struct.Struct("<Q")


class GgufHeader:
    """What the header holds, in its order; `at` is the offset of what comes next.

    Every method raises ModelError where the file is truncated or corrupt, or the header larger than any model's.
    """

    def __init__(self, file: FileBytes) -> None:
        self._file = file
        self._bytes = bytearray()  # the part of it that has been read
        self._items = 0
        self.at = 0

    def number(self, form: str) -> Any:
        """form: as in `struct`."""
        return struct.unpack_from(form, self._bytes, self._need(struct.calcsize(form)))[0]

    def string(self) -> str:
        (size,) = _LENGTH.unpack_from(self._bytes, self._need(8))
        at = self._need(size)
        try:
            return self._bytes[at : at + size].decode()
        except UnicodeDecodeError as error:
            raise ModelError(f"{self._file.path}: corrupt: the string at offset {at} is not UTF-8") from error

    def value(self, number: int, depth: int = 0) -> Any:
        """A value of the type with this number: a string, number or boolean, a list of strings or arrays, or a NumPy array."""
        try:
            type_ = GGUFValueType(number)
        except ValueError as error:
            raise ModelError(f"{self._file.path}: corrupt: value type {number} at offset {self.at}") from error
        if type_ == GGUFValueType.STRING:
            return self.string()
        if type_ != GGUFValueType.ARRAY:
            return self.number(_SCALARS[type_])
        item, count = self.number("<I"), self.number("<Q")
        if item == GGUFValueType.STRING:
            return self._strings(self.item_count(count, 8))
        if item == GGUFValueType.ARRAY:
            if depth == _MAX_DEPTH:
                raise ModelError(f"{self._file.path}: corrupt: arrays nested at offset {self.at}")
            return [self.value(item, depth + 1) for _ in range(self.item_count(count, 12))]
        form = _SCALARS.get(item)
        if form is None:
            raise ModelError(f"{self._file.path}: corrupt: value type {item} at offset {self.at}")
        size = struct.calcsize(form)
        at = self._need(self.count(count, size) * size)
        if form == "<?":  # any byte but 0 is true
            return np.frombuffer(self._bytes, np.uint8, count, at) != 0
        return np.frombuffer(self._bytes, form, count, at).copy()

    def count(self, count: int, least: int) -> int:
        """A count from the file, refused if that many items of at least `least` bytes do not fit into the rest of it."""
        if count * least > self._file.size - self.at:
            raise ModelError(f"{self._file.path}: truncated or corrupt: {count} items expected at offset {self.at}")
        return count

    def item_count(self, count: int, least: int) -> int:
        """The count of items that become Python objects."""
        self._items += self.count(count, least)
        if self._items > _MAX_ITEMS:
            raise ModelError(f"{self._file.path}: corrupt: the metadata hold more than {_MAX_ITEMS} items")
        return count

    def _strings(self, count: int) -> list[str]:
        """As many calls of `string`, in a fifth of the time: vocabularies have 10^5 of them."""
        found: list[str] = []
        header, length = self._bytes, _LENGTH.unpack_from
        while len(found) < count:
            at, end = self.at, len(header)
            try:
                for _ in range(count - len(found)):
                    if at + 8 > end:
                        break
                    last = at + 8 + length(header, at)[0]
                    if last > end:
                        break
                    found.append(header[at + 8 : last].decode())
                    at = last
            except UnicodeDecodeError:
                pass  # `string` says where
            self.at = at
            if len(found) < count:
                found.append(self.string())  # reads more of the file, or refuses
        return found

    def _need(self, size: int) -> int:
        """Advances by `size` bytes, which are in `_bytes` then, and returns the offset of the first."""
        at, end = self.at, self.at + size
        if end > self._file.size:
            raise ModelError(
                f"{self._file.path}: truncated or corrupt: {size} bytes expected at offset {at} of {self._file.size}"
            )
        if end > _MAX_HEADER:
            raise ModelError(f"{self._file.path}: corrupt: the header is longer than {_MAX_HEADER >> 20} MiB")
        missing = end - len(self._bytes)
        if missing > 0:
            rest = self._file.size - len(self._bytes)
            self._bytes += self._file.read(len(self._bytes), min(max(missing, _CHUNK, len(self._bytes)), rest)).data
        self.at = end
        return at


def item_type(values: list[Any] | np.ndarray) -> GGUFValueType:
    """The type of the items of an array that is not empty, as `GgufHeader.value` has read it."""
    if isinstance(values, np.ndarray):
        return _OF_ITEMS[values.dtype]
    return GGUFValueType.STRING if isinstance(values[0], str) else GGUFValueType.ARRAY
