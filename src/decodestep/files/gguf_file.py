"""Reads GGUF files: the header at once, the bytes of a tensor on demand.

The file is read, not mapped: data already read is not affected if another program truncates or rewrites the file. The tables of
types and block sizes come from the `gguf` package.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from decodestep.errors import ModelError
from decodestep.files.file_bytes import FileBytes, StoredTensor
from decodestep.files.gguf_header import GgufHeader

_LOG = logging.getLogger(__name__)
_MAX_RANK = 4  # of tensors, as in ggml
_MAX_TENSORS = 1 << 17  # of a header: real ones have thousands, each a Python object


# By the names of generation_config.json.
SAMPLING_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


@dataclass(frozen=True)
class Tensor(StoredTensor):
    """A tensor of a GGUF file. Its shape has NumPy's order of axes, the reverse of the file's."""

    type: GGMLQuantizationType


class GgufFile:
    """A GGUF file of version 2 or 3, little-endian: `metadata` and their `types` by key, and `tensors` by name.

    Metadata are strings, numbers, booleans, lists of strings or of arrays, and NumPy arrays of numbers or booleans.
    The file stays open as long as this object or one of its tensors is in use.
    Raises ModelError for a file that cannot be opened, is truncated or corrupt, is of another version, or whose header is
    larger than any model's: 256 MiB, 4 million strings or 128 thousand tensors.
    """

    generation_config: Mapping[str, Any] = {}  # a file has no more of it than `sampling_defaults`

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = FileBytes(path)
        if self._file.size < 4 or bytes(self._file.read(0, 4)) != b"GGUF":
            raise ModelError(f"{path}: not a GGUF file (a checkpoint of safetensors is named by its folder)")
        header = GgufHeader(self._file)
        header.number("<I")  # "GGUF"
        version = header.number("<I")
        if version not in (2, 3):
            raise ModelError(f"{path}: GGUF version {version} is not supported (2 and 3 are)")
        tensors, pairs = header.number("<Q"), header.number("<Q")
        self.types: dict[str, GGUFValueType] = {}
        self.metadata = self._read_metadata(header, pairs)
        self.tensors = self._read_tensors(header, tensors)

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """What the keys general.sampling.* say, by the names of generation_config.json."""
        found = {name: self.metadata.get(key) for name, key in SAMPLING_KEYS.items()}
        return {name: _shortest(value) for name, value in found.items() if value is not None}

    def chat_templates(self) -> dict[str, Any]:
        """Chat templates by name; "default" is the one for all conversations."""
        keys = {"default": "tokenizer.chat_template", "tool_use": "tokenizer.chat_template.tool_use"}
        return {name: self.metadata[key] for name, key in keys.items() if key in self.metadata}

    def _read_metadata(self, header: GgufHeader, count: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(header.item_count(count, 13)):
            key = header.string()
            if key in found:
                raise ModelError(f"{self.path}: corrupt: metadata {key!r:.80} occurs twice")
            number = header.number("<I")
            found[key] = header.value(number)
            self.types[key] = GGUFValueType(number)
        return found

    def _read_tensors(self, header: GgufHeader, count: int) -> dict[str, Tensor]:
        if count > _MAX_TENSORS:
            raise ModelError(f"{self.path}: truncated or corrupt: {count} tensors")
        headers = [self._tensor_header(header) for _ in range(header.count(count, 24))]
        alignment = self.metadata.get("general.alignment", 32)
        if not (type(alignment) is int and alignment > 0):
            raise ModelError(f"{self.path}: general.alignment is {alignment!r}")
        start = _padded(header.at, alignment)
        found: dict[str, Tensor] = {}
        for name, shape, type_, at in headers:
            if name in found:
                raise ModelError(f"{self.path}: corrupt: tensor {name!r:.80} occurs twice")
            found[name] = self._tensor(name, shape, type_, start + at)
        self._check_places(found, start, alignment)
        return found

    def _check_places(self, tensors: dict[str, Tensor], start: int, alignment: int) -> None:
        """Refuses tensors with more or less between them than padding, which belong to a file of another alignment.

        Bytes after the last one may be a sign of that too, where the file states its alignment; otherwise they are ignored, as
        by llama.cpp.
        """
        end, rule = start, f"general.alignment {alignment}"
        for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes)):
            if tensor.offset != end:
                found = f"tensor {tensor.name!r:.80} is at byte {tensor.offset}"
                raise ModelError(f"{self.path}: corrupt: {found}, by {rule} not at {end}")
            end = _padded(end + tensor.nbytes, alignment)
        if self._file.size > end:
            if "general.alignment" in self.metadata:
                raise ModelError(f"{self.path}: corrupt: {self._file.size - end} bytes after the last tensor, by {rule}")
            _LOG.warning("%s: %d bytes after the last tensor are ignored", self.path, self._file.size - end)

    def _tensor_header(self, header: GgufHeader) -> tuple[str, tuple[int, ...], int, int]:
        name = header.string()
        rank = header.number("<I")
        if rank > _MAX_RANK:
            raise ModelError(f"{self.path}: corrupt: tensor {name!r:.80} has {rank} axes")
        shape = tuple(header.number("<Q") for _ in range(rank))
        return name, shape[::-1], header.number("<I"), header.number("<Q")

    def _tensor(self, name: str, shape: tuple[int, ...], number: int, at: int) -> Tensor:
        try:
            type_ = GGMLQuantizationType(number)
        except ValueError as error:
            raise ModelError(f"{self.path}: tensor {name!r:.80} has the unknown type {number}") from error
        values, size = GGML_QUANT_SIZES[type_]
        if not shape or 0 in shape or shape[-1] % values:
            raise ModelError(f"{self.path}: corrupt: tensor {name!r:.80} of type {type_.name} has shape {shape}")
        length = math.prod(shape) // values * size
        if at + length > self._file.size:
            raise ModelError(f"{self.path}: truncated: tensor {name!r:.80} ends at byte {at + length} of {self._file.size}")
        return Tensor(name, shape, length, at, self._file, type_)


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _shortest(value: object) -> Any:
    """A float, which the file holds as float32, as the shortest decimal that rounds to it: 0.95 and not 0.949999988."""
    return float(str(np.float32(value))) if isinstance(value, float) else value
