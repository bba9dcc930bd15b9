"""Reads safetensors files: the header in one checked pass, the bytes of a tensor on demand.

The file is read, not mapped as by the safetensors package (see `file_bytes`). Data is read directly to its final place, so that
the weights are in memory only once.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from decodestep._base.checks import is_int
from decodestep.errors import ModelError
from decodestep.files.file_bytes import FileBytes, StoredTensor
from decodestep.files.json_file import parse_object
from decodestep.weights.packed import DENSE_DTYPES

_BITS = {"F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16}
_BITS |= {"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8, "C64": 64, "F4": 4}
_DENSE = {format_.name: dtype for format_, dtype in DENSE_DTYPES.items()}
_MAX_HEADER = 100_000_000  # bytes, as in the safetensors package
_MAX_TENSORS = 1 << 20
_MAX_RANK = 8


@dataclass(frozen=True)
class SafeTensor(StoredTensor):
    """A tensor of a safetensors file. type: "F32", "BF16" and others. The shape of a weight is (outputs, inputs)."""

    type: str

    def float32(self) -> np.ndarray:
        """Its values. ModelError for a type that is not F32, F16 or BF16."""
        dtype = _DENSE.get(self.type)
        if dtype is None:
            raise ModelError(f"{self.path}: tensor {self.name} has the type {self.type}, which is not supported")
        return self.read().view(dtype).astype(np.float32).reshape(self.shape)


def read_header(path: Path) -> dict[str, SafeTensor]:
    """The tensors of a file by name.

    Raises ModelError for a file that cannot be opened, is truncated or corrupt: whose header is not a JSON object of tensors,
    or whose tensors overlap, leave gaps, or do not have as many bytes as their shapes say.
    """
    file = FileBytes(path)
    if file.size < 8:
        raise ModelError(f"{path}: truncated or corrupt: {file.size} bytes")
    (size,) = struct.unpack("<Q", bytes(file.read(0, 8)))
    if size > min(file.size - 8, _MAX_HEADER):
        raise ModelError(f"{path}: truncated or corrupt: a header of {size} bytes in a file of {file.size}")
    header = parse_object(path, bytes(file.read(8, size)))
    header.pop("__metadata__", None)
    if len(header) > _MAX_TENSORS:
        raise ModelError(f"{path}: corrupt: {len(header)} tensors")
    start = 8 + size
    tensors = {name: _tensor(file, name, value, start) for name, value in header.items()}
    end = start
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != end:
            raise ModelError(f"{path}: corrupt: tensor {tensor.name!r:.80} begins at byte {tensor.offset}, not at {end}")
        end += tensor.nbytes
        if end > file.size:
            raise ModelError(f"{path}: truncated: tensor {tensor.name!r:.80} ends at byte {end} of {file.size}")
    if end != file.size:
        raise ModelError(f"{path}: corrupt: {file.size - end} bytes after the last tensor")
    return tensors


def _tensor(file: FileBytes, name: str, value: object, start: int) -> SafeTensor:
    where = f"{file.path}: corrupt: tensor {name!r:.80}"
    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= value.keys():
        raise ModelError(f"{where} has no dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    bits = _BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        raise ModelError(f"{where} has the unknown type {dtype!r:.80}")
    if not _are_sizes(shape) or len(shape) > _MAX_RANK or not _are_sizes(offsets) or len(offsets) != 2:
        raise ModelError(f"{where} has no shape or offsets of integers >= 0")
    length = math.prod(shape) * bits
    if length != 8 * (offsets[1] - offsets[0]):
        raise ModelError(f"{where} of type {dtype} and shape {tuple(shape)} has {offsets[1] - offsets[0]} bytes")
    return SafeTensor(name, tuple(shape), length // 8, start + offsets[0], file, dtype)


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(is_int(item) and 0 <= item < 1 << 63 for item in value)
