"""Rewrites a GGUF file in other types, or a folder of safetensors as a GGUF file, with the metadata unchanged."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, LlamaFileType
from gguf.constants import GGMLQuantizationType as Type

from decodestep._base.checks import require, require_choice
from decodestep.errors import ModelError
from decodestep.families.common.indexer import TYPES_RULE, are_types
from decodestep.files.file_bytes import naming
from decodestep.models.checkpoint import Checkpoint, open_checkpoint
from decodestep.models.gguf_source import Source, SourceTensor, open_source
from decodestep.models.quantise import has_finite_scales, quantise

_OP = "quantize"
_QUANTIZATION_VERSION = 2  # of the layouts of blocks


class _Place(NamedTuple):
    """Which of how many layers that have such a part a tensor is of."""

    number: int
    layers: int


Progress = Callable[[int, int, str], None]
# The type of a part of a layer: of the tensor, its place, and the source.
Choice = Callable[[SourceTensor, _Place, Source], Type]


@dataclass(frozen=True)
class Recipe:
    """The types of a file's tensors. base: of the matrices. output: of the logits matrix. file_type: the file's number. values,
    down, attention_output: of values, down projections and the projection after attention; None: base."""

    base: Type
    output: Type
    file_type: LlamaFileType
    values: Choice | None = None
    down: Choice | None = None
    attention_output: Choice | None = None


def _with_more(base: Type, more: Type, file_type: LlamaFileType) -> Recipe:
    """With more bits where the values and down projections are most sensitive to error: in the first and last eighth of the
    layers and every third in between."""

    def choice(_: SourceTensor, place: _Place, source: Source) -> Type:
        number, layers = place
        eighth = layers // 8
        return more if number < eighth or number >= 7 * layers // 8 or (number - eighth) % 3 == 2 else base

    return Recipe(base, Type.Q6_K, file_type, values=choice, down=choice)


def _always(type_: Type) -> Choice:
    return lambda *_: type_


def _values_of_q2_k(tensor: SourceTensor, _: _Place, source: Source) -> Type:
    """More bits where four query heads or more share a key head."""
    values = next((name for name in source.tensors if name.endswith(".attn_v.weight")), None)
    if values is None:
        return Type.Q3_K
    queries = source.tensors[values.replace("attn_v", "attn_output")].shape[1]
    return Type.Q4_K if queries >= 4 * source.tensors[values].shape[0] else Type.Q3_K


# The mixtures are those of llama.cpp's quantiser without an importance matrix.
RECIPES = {
    "f32": Recipe(Type.F32, Type.F32, LlamaFileType.ALL_F32),
    "f16": Recipe(Type.F16, Type.F16, LlamaFileType.MOSTLY_F16),
    "bf16": Recipe(Type.BF16, Type.BF16, LlamaFileType.MOSTLY_BF16),
    "q8_0": Recipe(Type.Q8_0, Type.Q8_0, LlamaFileType.MOSTLY_Q8_0),
    "q4_0": Recipe(Type.Q4_0, Type.Q6_K, LlamaFileType.MOSTLY_Q4_0),
    "q4_1": Recipe(Type.Q4_1, Type.Q6_K, LlamaFileType.MOSTLY_Q4_1),
    "q5_0": Recipe(Type.Q5_0, Type.Q6_K, LlamaFileType.MOSTLY_Q5_0),
    "q5_1": Recipe(Type.Q5_1, Type.Q6_K, LlamaFileType.MOSTLY_Q5_1),
    "q2_k": Recipe(
        Type.Q2_K,
        Type.Q6_K,
        LlamaFileType.MOSTLY_Q2_K,
        values=_values_of_q2_k,
        down=_always(Type.Q3_K),
        attention_output=_always(Type.Q3_K),
    ),
    "q3_k_m": Recipe(
        Type.Q3_K,
        Type.Q6_K,
        LlamaFileType.MOSTLY_Q3_K_M,
        values=lambda _, place, source: Type.Q5_K if place.number < 2 else Type.Q4_K,
        down=lambda _, place, source: Type.Q5_K if place.number < place.layers // 16 else Type.Q4_K,
        attention_output=_always(Type.Q4_K),
    ),
    "q4_k_m": _with_more(Type.Q4_K, Type.Q6_K, LlamaFileType.MOSTLY_Q4_K_M),
    "q5_k_m": _with_more(Type.Q5_K, Type.Q6_K, LlamaFileType.MOSTLY_Q5_K_M),
    "q6_k": Recipe(Type.Q6_K, Type.Q6_K, LlamaFileType.MOSTLY_Q6_K),
}
# In place of types whose blocks of 256 the rows do not fill; below them come blocks of 32, then float16.
_NARROWER = {Type.Q2_K: Type.Q4_0, Type.Q3_K: Type.Q4_0, Type.Q4_K: Type.Q5_0, Type.Q5_K: Type.Q5_1, Type.Q6_K: Type.Q8_0}
_DENSE = ("ffn_gate_inp.", "rope_", "_norm.", "ssm_conv1d.", "shortconv.conv.")
_VALUES = ("attn_v", "attn_kv_b", "attn_qkv")
_DOWN = ("ffn_down", "ffn_down_exps", "ffn_down_shexp")


def requantise(source: Path, target: Path, recipe: str, progress: Progress, indexer_types: Sequence[str] | None = None) -> int:
    """Writes `source`, a GGUF file or a folder, to `target` in the types of `recipe`; readable by llama.cpp.

    recipe: a key of `RECIPES`. progress: progress(values done, values, name of the tensor) before each tensor and after each
        piece of it. indexer_types: as for `load`; the file that is written says them.
    The file appears under its name only when it is complete.

    Returns the size of the files that hold the source's tensors.
    Raises ModelError for what `load` refuses, a folder that GGUF's keys cannot describe, and a value that is not finite;
    RequestError for recipe or target; OSError if the file cannot be written.
    """
    require_choice(_OP, "--type", recipe, tuple(RECIPES))
    require(target.parent.is_dir(), _OP, "OUT", "in a folder that exists", str(target))
    require(indexer_types is None or are_types(indexer_types), _OP, "--indexer-types", TYPES_RULE, indexer_types)
    # A directory, or a device such as /dev/null, whose name the file would take.
    require(target.is_file() or not target.exists(), _OP, "OUT", "a file", str(target))
    _require_another(target, [source], "IN")
    with naming(source):
        checkpoint = open_checkpoint(source, indexer_types)
        checkpoint.check()
        described = open_source(checkpoint)
    tensor_files = {tensor.path for tensor in checkpoint.file.tensors.values()}
    _require_another(target, [*tensor_files, *_folder_files(checkpoint)], "those of IN")
    size = sum(path.stat().st_size for path in tensor_files)
    _write(described, target, RECIPES[recipe], progress)
    return size


def _require_another(target: Path, files: Iterable[Path], whose: str) -> None:
    same = target.exists() and any(target.samefile(path) for path in files)
    require(not same, _OP, "OUT", f"another file than {whose}", str(target))


def _folder_files(checkpoint: Checkpoint) -> Iterator[Path]:
    """All files of a folder except GGUF files, which were written there before."""
    if checkpoint.path.is_dir():
        yield from (path for path in checkpoint.path.rglob("*") if path.is_file() and path.suffix != ".gguf")


def _write(source: Source, target: Path, recipe: Recipe, progress: Progress) -> None:
    done, count = 0, sum(math.prod(tensor.shape) for tensor in source.tensors.values())
    types = {name: _choose_type(tensor, recipe, source) for name, tensor in source.tensors.items()}
    part = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")  # a name that no other file has, a source too
    try:
        writer = _writer(source, part, recipe, types)
        with _writing(target):
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
        for name, tensor in source.tensors.items():
            made = []
            progress(done, count, name)
            for values, converted in _convert(tensor, types[name], source.path):
                made.append(converted)
                done += values
                progress(done, count, name)
            with _writing(target):
                writer.write_tensor_data(made[0] if len(made) == 1 else np.concatenate(made))
        with _writing(target):
            writer.close()
            part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _writer(source: Source, path: Path, recipe: Recipe, types: dict[str, Type]) -> GGUFWriter:
    """What writes the file to `path`, with its metadata and tensors announced."""
    writer = GGUFWriter(path, source.architecture)
    source.copy_fields(writer)
    writer.add_file_type(recipe.file_type)
    writer.add_quantization_version(_QUANTIZATION_VERSION)
    for name, tensor in source.tensors.items():
        block, size = GGML_QUANT_SIZES[types[name]]
        nbytes = math.prod(tensor.shape) // block * size
        writer.add_tensor_info(name, _stored_shape(tensor, types[name]), np.dtype(np.uint8), nbytes, types[name])
    return writer


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Puts the file's name before an error of the system, which has none where a disk is full."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{target}: cannot be written: {error.strerror or error}") from error


def _choose_type(tensor: SourceTensor, recipe: Recipe, source: Source) -> Type:
    name = tensor.name
    if len(tensor.shape) < 2 or not name.endswith(".weight") or any(part in name for part in _DENSE):
        return tensor.type
    is_output = name == "output.weight" or (source.tied and name == "token_embd.weight")
    type_ = recipe.output if is_output else recipe.base
    if tensor.type == Type.MXFP4 and type_ not in (Type.F32, Type.F16, Type.BF16):
        return tensor.type  # in which the model was trained
    if name.startswith("blk."):
        _, layer, part, *_ = name.split(".")
        if (choice := _choice(recipe, part)) is not None:
            type_ = choice(tensor, _place(part, int(layer), source), source)
    width = tensor.shape[-1]
    if type_ in _NARROWER and width % GGML_QUANT_SIZES[type_][0]:
        type_ = _NARROWER[type_]
    return type_ if width % GGML_QUANT_SIZES[type_][0] == 0 else Type.F16


def _choice(recipe: Recipe, part: str) -> Choice | None:
    if part in _VALUES:
        return recipe.values
    if part in _DOWN:
        return recipe.down
    return recipe.attention_output if part == "attn_output" else None


def _place(part: str, layer: int, source: Source) -> _Place:
    """llama.cpp's quantiser counts dense down projections, but takes the number of all layers for their count."""

    def earlier(parts: tuple[str, ...], end: int) -> int:
        return sum(any(f"blk.{i}.{part}.weight" in source.tensors for part in parts) for i in range(end))

    if part in _VALUES:
        return _Place(earlier(_VALUES, layer), earlier(_VALUES, source.layers))
    has_experts = any("_exps." in name for name in source.tensors)
    return _Place(layer if has_experts or part not in _DOWN else earlier(_DOWN, layer), source.layers)


def _stored_shape(tensor: SourceTensor, type_: Type) -> tuple[int, ...]:
    """As the writer takes it: the last axis in bytes."""
    block, size = GGML_QUANT_SIZES[type_]
    return (*tensor.shape[:-1], tensor.shape[-1] // block * size)


def _convert(tensor: SourceTensor, type_: Type, path: Path) -> Iterator[tuple[int, np.ndarray]]:
    """The tensor in pieces: how many values, and these in the type, as one axis."""
    if tensor.stored is not None and tensor.type == type_:
        stored = tensor.stored()
        if not has_finite_scales(stored, type_):
            raise ModelError(f"{path}: tensor {tensor.name} must hold finite numbers")
        yield math.prod(tensor.shape), stored
        return
    for values in tensor.values():
        rows = values.reshape(-1, tensor.shape[-1])
        if not np.isfinite(rows).all():
            raise ModelError(f"{path}: tensor {tensor.name} must hold finite numbers")
        made = quantise(rows, type_).reshape(-1)
        if not has_finite_scales(made, type_):
            raise ModelError(f"{path}: tensor {tensor.name} has values too large for {type_.name}")
        yield values.size, made
