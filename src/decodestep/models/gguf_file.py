"""Reads GGUF files: the header in one bounds-checked pass, the bytes of a tensor on demand.

The file is read, not mapped: data already read is not affected if another program truncates or rewrites the file.

The tables of types and block sizes come from the `gguf` package. Its own reader is not used: it makes several NumPy objects for
every string of the vocabulary (seconds for 10^5 tokens) and trusts the counts in the file.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from decodestep.models.errors import ModelError
from decodestep.models.file_bytes import FileBytes, StoredTensor

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
_MAX_RANK = 4  # of tensors, as in ggml
# What a header may make us hold. Real ones have up to 30 MB and a million strings; each string and tensor is a Python object.
_MAX_HEADER = 1 << 28  # bytes
_MAX_ITEMS = 1 << 22  # keys, strings and arrays inside arrays
_MAX_TENSORS = 1 << 17
_CHUNK = 1 << 21  # bytes of the header that are read at once, at least
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Tensor(StoredTensor):
    """A tensor of a GGUF file. Its shape has NumPy's order of axes, the reverse of the file's."""

    type: GGMLQuantizationType


class GgufFile:
    """A GGUF file of version 2 or 3, little-endian: `metadata` by key and `tensors` by name.

    Metadata are strings, numbers, booleans, lists of strings or of arrays, and NumPy arrays of numbers or booleans.
    The file stays open as long as this object or one of its tensors is in use.
    Raises ModelError for a file that cannot be opened, is truncated or corrupt, is of another version, or whose header is
    larger than any model's: 256 MiB, 4 million strings or 128 thousand tensors.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = FileBytes(path)
        self._header = bytearray()  # the part of it that has been read
        self._at = 0
        self._items = 0
        if self._file.size < 4 or bytes(self._file.read(0, 4)) != b"GGUF":
            raise ModelError(f"{path}: not a GGUF file")
        self._at = 4
        version = self._number("<I")
        if version not in (2, 3):
            raise ModelError(f"{path}: GGUF version {version} is not supported (2 and 3 are)")
        tensors, pairs = self._number("<Q"), self._number("<Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(self._item_count(pairs, 13)):
            key = self._string()
            if key in self.metadata:
                raise ModelError(f"{path}: corrupt: metadata {key!r:.80} occurs twice")
            self.metadata[key] = self._value(self._number("<I"))
        if tensors > _MAX_TENSORS:
            raise ModelError(f"{path}: truncated or corrupt: {tensors} tensors")
        headers = [self._tensor_header() for _ in range(self._count(tensors, 24))]
        alignment = self.metadata.get("general.alignment", 32)
        if not (type(alignment) is int and alignment > 0):
            raise ModelError(f"{path}: general.alignment is {alignment!r}")
        start = -(-self._at // alignment) * alignment
        self.tensors: dict[str, Tensor] = {}
        for name, shape, kind, at in headers:
            if name in self.tensors:
                raise ModelError(f"{path}: corrupt: tensor {name!r:.80} occurs twice")
            if at % alignment:
                raise ModelError(f"{path}: corrupt: tensor {name!r:.80} is not at a multiple of {alignment} bytes")
            self.tensors[name] = self._tensor(name, shape, kind, start + at)
        end = start
        for tensor in sorted(self.tensors.values(), key=lambda tensor: tensor._at):
            if tensor._at < end:
                raise ModelError(f"{path}: corrupt: tensor {tensor.name!r:.80} begins within another")
            end = tensor._at + tensor.nbytes
        self._header.clear()

    generation_config: Mapping[str, Any] = {}  # a file has none

    def chat_templates(self) -> dict[str, Any]:
        """Chat templates by name; "default" is the one for all conversations."""
        keys = {"default": "tokenizer.chat_template", "tool_use": "tokenizer.chat_template.tool_use"}
        return {name: self.metadata[key] for name, key in keys.items() if key in self.metadata}

    def _need(self, size: int) -> int:
        """Advances by `size` bytes, which are in `_header` then, and returns the offset of the first."""
        at, end = self._at, self._at + size
        if end > self._file.size:
            raise ModelError(f"{self.path}: truncated or corrupt: {size} bytes expected at offset {at} of {self._file.size}")
        if end > _MAX_HEADER:
            raise ModelError(f"{self.path}: corrupt: the header is longer than {_MAX_HEADER >> 20} MiB")
        missing = end - len(self._header)
        if missing > 0:
            rest = self._file.size - len(self._header)
            self._header += self._file.read(len(self._header), min(max(missing, _CHUNK, len(self._header)), rest)).data
        self._at = end
        return at

    def _count(self, count: int, least: int) -> int:
        """A count from the file, refused if that many items of at least `least` bytes do not fit into the rest of it."""
        if count * least > self._file.size - self._at:
            raise ModelError(f"{self.path}: truncated or corrupt: {count} items expected at offset {self._at}")
        return count

    def _item_count(self, count: int, least: int) -> int:
        """The count of items that become Python objects."""
        self._items += self._count(count, least)
        if self._items > _MAX_ITEMS:
            raise ModelError(f"{self.path}: corrupt: the metadata hold more than {_MAX_ITEMS} items")
        return count

    def _number(self, form: str) -> Any:
        return struct.unpack_from(form, self._header, self._need(struct.calcsize(form)))[0]

    def _string(self) -> str:
        (size,) = _LENGTH.unpack_from(self._header, self._need(8))
        at = self._need(size)
        try:
            return self._header[at : at + size].decode()
        except UnicodeDecodeError as error:
            raise ModelError(f"{self.path}: corrupt: the string at offset {at} is not UTF-8") from error

    def _strings(self, count: int) -> list[str]:
        """As many calls of `_string`, in a fifth of the time: vocabularies have 10^5 of them."""
        found: list[str] = []
        header, length = self._header, _LENGTH.unpack_from
        while len(found) < count:
            at, end = self._at, len(header)
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
                pass  # `_string` says where
            self._at = at
            if len(found) < count:
                found.append(self._string())  # reads more of the file, or refuses
        return found

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
            return self._strings(self._item_count(count, 8))
        if item == GGUFValueType.ARRAY:
            if depth == _MAX_DEPTH:
                raise ModelError(f"{self.path}: corrupt: arrays nested at offset {self._at}")
            return [self._value(item, depth + 1) for _ in range(self._item_count(count, 12))]
        form = _SCALARS.get(item)
        if form is None:
            raise ModelError(f"{self.path}: corrupt: value type {item} at offset {self._at}")
        size = struct.calcsize(form)
        at = self._need(self._count(count, size) * size)
        if form == "<?":  # any byte but 0 is true
            return np.frombuffer(self._header, np.uint8, count, at) != 0
        return np.frombuffer(self._header, form, count, at).copy()

    def _tensor_header(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        rank = self._number("<I")
        if rank > _MAX_RANK:
            raise ModelError(f"{self.path}: corrupt: tensor {name!r:.80} has {rank} axes")
        shape = tuple(self._number("<Q") for _ in range(rank))
        return name, shape[::-1], self._number("<I"), self._number("<Q")

    def _tensor(self, name: str, shape: tuple[int, ...], number: int, at: int) -> Tensor:
        try:
            kind = GGMLQuantizationType(number)
        except ValueError as error:
            raise ModelError(f"{self.path}: tensor {name!r:.80} has the unknown type {number}") from error
        values, size = GGML_QUANT_SIZES[kind]
        if not shape or 0 in shape or shape[-1] % values:
            raise ModelError(f"{self.path}: corrupt: tensor {name!r:.80} of type {kind.name} has shape {shape}")
        length = math.prod(shape) // values * size
        if at + length > self._file.size:
            raise ModelError(f"{self.path}: truncated: tensor {name!r:.80} ends at byte {at + length} of {self._file.size}")
        return Tensor(name, shape, length, at, self._file, kind)
