"""The source from which a GGUF file is written: another GGUF file, or a folder of safetensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType, GGUFValueType

from decodestep.families.common.gguf_header import build_header
from decodestep.families.common.names import NamedTensor
from decodestep.families.common.registry import read_model_type
from decodestep.files.gguf_file import SAMPLING_KEYS, GgufFile, Tensor
from decodestep.files.gguf_header import item_type
from decodestep.files.model_folder import ModelFolder
from decodestep.files.tensor_values import read_float32
from decodestep.models.checkpoint import Checkpoint
from decodestep.models.experts_in_turn import read_experts
from decodestep.models.file_values import EXPERTS, IN_TURN, file_values
from decodestep.models.sampling_defaults import FIELDS, default_params
from decodestep.tokenizers.folder_tokenizer import FolderTokenizer
from decodestep.tokenizers.gguf_fields import tokenizer_fields
from decodestep.weights.lazy_weight import whole

# Keys that are written afresh, or that say how the source lay in its file.
_LEFT_OUT = ("general.architecture", "general.file_type", "general.quantization_version", "general.alignment")
_PART = 1 << 24  # values


@dataclass(frozen=True)
class SourceTensor:
    """type: as stored, or F32 for a computed tensor. stored: reads its bytes in that type, if it has them. values: its rows as
    float32 (..., shape[-1]), in pieces."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    stored: Callable[[], np.ndarray] | None
    values: Callable[[], Iterator[np.ndarray]]


@dataclass(frozen=True)
class Source:
    """copy_fields: writes the metadata except the architecture and the quantisation keys."""

    path: Path
    architecture: str
    layers: int
    tied: bool
    copy_fields: Callable[[GGUFWriter], None]
    tensors: dict[str, SourceTensor]


def open_source(checkpoint: Checkpoint) -> Source:
    """`checkpoint` has been checked. Raises ModelError for a folder that GGUF's keys cannot describe."""
    file = checkpoint.file
    return _from_folder(checkpoint, file) if isinstance(file, ModelFolder) else _from_file(checkpoint, file)


def _from_file(checkpoint: Checkpoint, file: GgufFile) -> Source:
    def source_tensor(tensor: Tensor) -> SourceTensor:
        return SourceTensor(tensor.name, tensor.shape, tensor.type, tensor.read, lambda: map(read_float32, _in_parts(tensor)))

    def copy_fields(writer: GGUFWriter) -> None:
        for key, value in file.metadata.items():
            if key.startswith("split.") or key in _LEFT_OUT:
                continue
            if key not in file.types:  # what the file leaves unsaid, and was said at opening
                writer.add_key_value(key, value, *_value_type(value))
            elif file.types[key] != GGUFValueType.ARRAY:
                writer.add_key_value(key, value, file.types[key])
            elif len(value):  # the writer takes no empty array, and to leave it out says the same
                writer.add_key_value(key, _as_lists(value), GGUFValueType.ARRAY, item_type(value))

    config = checkpoint.config
    tensors = {name: source_tensor(tensor) for name, tensor in file.tensors.items()}
    return Source(checkpoint.path, config.architecture, config.layers, config.tied, copy_fields, tensors)


def _in_parts(tensor: Tensor) -> Iterator[Tensor]:
    """A tensor as several of some of its rows each, of which one takes little memory as float32."""
    *axes, width = tensor.shape
    rows = math.prod(axes)
    row_bytes, step = tensor.nbytes // rows, max(1, _PART // width)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        offset = tensor.offset + first * row_bytes
        yield replace(tensor, shape=(count, width), nbytes=count * row_bytes, offset=offset)


def _as_lists(value: Any) -> Any:
    """A value of metadata as the writer takes it."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [_as_lists(each) for each in value] if isinstance(value, list) else value


def _from_folder(checkpoint: Checkpoint, folder: ModelFolder) -> Source:
    tokenizer = checkpoint.tokenizer()
    assert isinstance(tokenizer, FolderTokenizer)
    config, path = checkpoint.config, checkpoint.path
    header = build_header(folder, config, checkpoint.ropes())
    usual = read_model_type(folder).pre_tokenizer
    fields = header.metadata | tokenizer_fields(tokenizer, config.vocab_size, usual, str(path))
    fields |= _sampling_keys(path, folder.sampling_defaults)
    templates = [{"name": name, "template": text} for name, text in folder.chat_templates().items() if isinstance(text, str)]

    def copy_fields(writer: GGUFWriter) -> None:
        for key, value in fields.items():
            if key != "general.architecture" and value != []:  # the writer takes no empty array
                writer.add_key_value(key, value, *_value_type(value))
        if templates:
            writer.add_chat_template(templates)

    def source_tensor(i: int, tensor: NamedTensor) -> SourceTensor:
        in_blocks = tensor.part in EXPERTS and checkpoint.has("experts_gate_up_in_turn_blocks", i)
        return SourceTensor(
            tensor.name,
            tensor.shape,
            GGMLQuantizationType.MXFP4 if in_blocks else GGMLQuantizationType.F32,
            (lambda: whole(getattr(read_experts(checkpoint, i), IN_TURN[tensor.part]).weight).rows) if in_blocks else None,
            lambda: file_values(checkpoint, header.config, tensor, i),
        )

    tensors = {tensor.name: source_tensor(i, tensor) for i, tensor in header.tensors}
    for name, vector in header.vectors.items():
        tensors[name] = SourceTensor(name, vector.shape, GGMLQuantizationType.F32, None, partial(iter, [vector]))
    return Source(path, header.config.architecture, config.layers, config.tied, copy_fields, tensors)


def _sampling_keys(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a file with the `default_params` of what is given; without the fields that are not.

    A greedy model has the temperature 0, for which llama.cpp is greedy too; the file can say no other besides.
    """
    params = default_params(path, given)
    fields: dict[str, Any] = {name: getattr(params, name) for name in FIELDS if given.get(name) is not None}
    if "top_k" in fields:
        fields["top_k"] = max(fields["top_k"], 0)  # both 0 and -1 are off
    if params.greedy:
        fields["temperature"] = 0.0
    return {SAMPLING_KEYS[name]: value for name, value in fields.items()}


def _value_type(value: object) -> tuple[GGUFValueType, GGUFValueType | None]:
    if isinstance(value, list):
        of_items = _value_type(value[0])[0] if value else GGUFValueType.STRING
        # llama.cpp reads the types of tokens as INT32 alone.
        return GGUFValueType.ARRAY, GGUFValueType.INT32 if of_items == GGUFValueType.UINT32 else of_items
    types = {bool: GGUFValueType.BOOL, int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32, str: GGUFValueType.STRING}
    return types[type(value)], None
