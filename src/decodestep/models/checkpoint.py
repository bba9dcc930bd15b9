"""The tensors of a checkpoint by the part of the model that they hold; all are checked before any is read."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gguf.constants import GGMLQuantizationType

from decodestep.decoding.config import Config
from decodestep.decoding.rope import Rope
from decodestep.errors import ModelError
from decodestep.families.common import folder, gguf, indexer, names
from decodestep.families.common.mixer_shapes import INDEX_PARTS
from decodestep.families.common.names import NamedTensor
from decodestep.families.common.registry import ARCHITECTURES, TIKTOKEN_RULES, read_model_type, text_model
from decodestep.files.gguf_file import GgufFile, Tensor
from decodestep.files.gguf_shards import open_gguf
from decodestep.files.model_folder import ModelFolder
from decodestep.files.safetensors_file import SafeTensor
from decodestep.files.tensor_values import FLOAT8, TILE, can_be_read, read_float32, read_pieces, type_name
from decodestep.tokenizers.folder_tokenizer import FolderTokenizer
from decodestep.tokenizers.gguf_tokenizer import GgufTokenizer
from decodestep.tokenizers.tokenizer import Tokenizer
from decodestep.weights.file_weight import FilePart, FileWeight
from decodestep.weights.lazy_weight import RowWeight, whole
from decodestep.weights.packed import DENSE_FORMATS, Format
from decodestep.weights.widened_weight import WidenedWeight

_NATIVE = {GGMLQuantizationType[format_.name]: format_ for format_ in Format}
_DENSE = {format_.name: format_ for format_ in DENSE_FORMATS}  # by the names of safetensors
_SCALE = "_scale_inv"
_BYTES, _IN_BLOCKS = "U8", ("_blocks", "_scales")  # of MXFP4 in folders: the type, and the ends of the names
_OF_KEYS = ("key", "value", "keys_norm")  # which published files have of layers that read another one's, too
_LOG = logging.getLogger(__name__)
_COMPARED = 8  # rows of a table

# Tensors that no decoder has a use for: frequencies that old checkpoints hold, scales of activations, and of layers for
# next-token prediction those that lack tensors, and copies of the model's embedding and of its logits weight.
_UNUSED = re.compile(r".*\.(rotary_emb\.inv_freq|activation_scale)|mtp\..*")
_LAYER = re.compile(r"(?:blk|model\.layers)\.(\d{1,9})\..*")


class Stored(NamedTuple):
    """A weight. widened: whether it was converted to float32 because no kernel multiplies it as it is."""

    weight: RowWeight
    widened: bool = False


class Checkpoint:
    """A file or folder, its sizes and its tensors.

    Methods name a tensor by its part, a key of `families.common.names`' tables, and its layer i; -1 for a part of no layer.
    Call `check` first: afterwards every tensor has the expected shape and a supported type.
    Raises ModelError for an architecture or sizes that are not supported or contradict each other.
    """

    def __init__(self, file: GgufFile | ModelFolder, indexer_types: Sequence[str] | None = None) -> None:
        file = file if isinstance(file, GgufFile) else text_model(file)
        if indexer_types is not None:
            indexer.say_layers(file, indexer_types, ARCHITECTURES)
        self.file, self.path = file, file.path
        self.config: Config = gguf.read_config(file) if isinstance(file, GgufFile) else folder.read_config(file)
        self._tensors: dict[str, Tensor] | dict[str, SafeTensor] = file.tensors
        described = ARCHITECTURES[self.config.architecture] if isinstance(file, GgufFile) else read_model_type(file)
        self._table = described.tensor_names
        self._parts: dict[tuple[str, int], list[NamedTensor]] = {}

    def tokenizer(self) -> Tokenizer:
        file = self.file
        if isinstance(file, GgufFile):
            return GgufTokenizer(file.metadata)
        return FolderTokenizer(file, self.config.vocab_size, tiktoken_rules=TIKTOKEN_RULES)

    def ropes(self) -> tuple[Rope, ...]:
        """The ropes; `GroupedConfig.ropes` says which a layer has."""
        file = self.file
        if isinstance(file, GgufFile):
            return gguf.read_ropes(file, self.config, lambda name, length: read_float32(self._tensor_of_shape(name, (length,))))
        return folder.read_ropes(file, self.config)

    def check(self) -> None:
        """Raises ModelError for a tensor that is missing, unknown, or of a wrong shape or an unsupported type."""
        self._parts.clear()
        known = {names.ROPE_DIVISORS, *names.ROPE_FACTORS.values()}  # which `ropes` reads
        for i, named in names.list_tensors(self.config, self._table, self._tensors.__contains__):
            self._parts.setdefault((named.part, i), []).append(named)
            tensor = self._tensor_of_shape(named.name, named.shape)
            if named.part == "correction" and not np.isfinite(read_float32(tensor)).all():
                raise ModelError(f"{self.path}: tensor {named.name} must hold finite numbers")
            known.add(named.name)
            if type_name(tensor) == FLOAT8:
                self._check_scale(tensor)
                known.add(tensor.name + _SCALE)
        known.update(self._next_token_copies())
        shared = [i for i in range(self.config.layers) if self.config.grouped.source(i) != i]
        known.update(self._table[part].format(i=i) for i in shared for part in _OF_KEYS)
        known.update(self._unread_indexers())
        unknown = sorted(name for name in set(self._tensors) - known if not self._is_left_out(name))
        if unknown:
            raise ModelError(
                f"{self.path}: tensors that this decoder does not know: {', '.join(unknown[:5])}"
                + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
            )

    def _unread_indexers(self) -> Iterator[str]:
        """The names of tensors of layers that attend to what another one selects, which some published files have."""
        latent = self.config.latent_attention
        if latent is None or latent.indexer is None:
            return
        for i, full in enumerate(latent.indexer.full):
            for part in () if full else INDEX_PARTS:
                name = self._table[part].format(i=i)
                yield from (name, name + _SCALE)

    def _is_left_out(self, name: str) -> bool:
        layer, first = _LAYER.fullmatch(name), self.config.layers + self.config.next_token_layers
        skipped = layer and first <= int(layer[1]) < first + self.config.skipped_layers
        return bool(skipped or _UNUSED.fullmatch(name))

    def _next_token_copies(self) -> Iterator[str]:
        """The names of tables in layers for next-token prediction: the model's own count. Warns of others."""
        tables = {"next_embedding": "embedding", "next_output": "embedding" if self.config.tied else "output"}
        for i in range(self.config.layers, self.config.layers + self.config.next_token_layers):
            for copy, table in tables.items():
                name, own = self._table[copy].format(i=i), self._table[table]
                if name in self._tensors and self._begin_differently(self._tensors[name], self._tensors[own]):
                    _LOG.warning("%s: tensor %s is not %s, which is used in its place", self.path, name, own)
                yield name

    def _begin_differently(self, a: Tensor | SafeTensor, b: Tensor | SafeTensor) -> bool:
        """Whether two tables differ in their first rows, as far as their types can be compared."""
        if a.shape != b.shape or len(a.shape) != 2:
            return True
        format_, rows = _format(a), min(_COMPARED, a.shape[0])
        if format_ is None or format_ != _format(b):
            return False  # one was rounded
        first, other = (
            FileWeight([FilePart(*one.place, rows, f"tensor {one.name}")], format_, one.shape[1], one.nbytes // one.shape[0])
            for one in (a, b)
        )
        return bool((whole(first).rows != whole(other).rows).any())

    def _tensor_of_shape(self, name: str, shape: tuple[int, ...]) -> Tensor | SafeTensor:
        """Raises ModelError for a tensor that is missing, of another shape or of an unsupported type."""
        tensor = self._tensors.get(name)
        if tensor is None:
            other = next((other for other in self._tensors if f".{other}".endswith(f".{name}")), None)
            raise ModelError(f"{self.path}: tensor {name} is missing" + (f"; there is {other}" if other else ""))
        if _without_ones(tensor.shape) != _without_ones(shape):
            raise ModelError(f"{self.path}: tensor {name} has shape {tensor.shape}, not {shape}")
        if isinstance(tensor, SafeTensor) and tensor.type not in _DENSE and not _is_quantised(tensor):
            raise ModelError(f"{self.path}: tensor {name} has the type {tensor.type}, which is not supported")
        if isinstance(tensor, Tensor) and tensor.type not in _NATIVE and not can_be_read(tensor.type):
            raise ModelError(f"{self.path}: tensor {name} has the type {tensor.type.name}, which is not supported")
        return tensor

    def _check_scale(self, tensor: Tensor | SafeTensor) -> None:
        grid, found = _scales_of(tensor), self._tensors.get(tensor.name + _SCALE)
        one_for_all = found is not None and found.shape in ((), (1,))
        scale = self._tensor_of_shape(tensor.name + _SCALE, found.shape if found is not None and one_for_all else grid)
        if not np.isfinite(read_float32(scale)).all():
            raise ModelError(f"{self.path}: tensor {scale.name} must hold finite numbers")

    def file_states(self) -> list[tuple[str | int, ...]]:
        """Of each file of tensors what is another number once it has been written to or replaced, from before it was read."""
        return sorted((path.name, *_state(tensor.file_status)) for path, tensor in self._tensor_of_file().items())

    def has_changed(self) -> bool:
        """Whether a file of tensors has been written to since it was opened."""
        tensors = self._tensor_of_file().values()
        return any(_state(os.fstat(tensor.place[0])) != _state(tensor.file_status) for tensor in tensors)

    def permissions(self) -> int:
        """Those of a new file for nobody but who may read all files of tensors, and enter their folder."""
        status = [tensor.file_status for tensor in self._tensor_of_file().values()]
        found = [(each.st_mode, each.st_gid) for each in status]
        if os.path.isdir(self.path):
            folder = os.stat(self.path)
            found.append(((folder.st_mode & 0o111) << 2, folder.st_gid))
        bits = 0o666
        for mode, group in found:
            # The new file is of this process's group; where that is another one, it may do what all others may.
            bits &= 0o600 | (mode if group == os.getegid() else mode & (mode << 3 | 0o7))
        return bits

    def _tensor_of_file(self) -> dict[Path, Tensor | SafeTensor]:
        """One of each file."""
        return {tensor.path: tensor for tensor in self._tensors.values()}

    def types(self) -> set[str]:
        """The names of the tensors' types."""
        return {type_name(tensor) for tensor in self._tensors.values()}

    def bytes_by_type(self) -> dict[str, int]:
        """The bytes of the model's tensors, by the name of their type. Call `check` first."""
        found: dict[str, int] = {}
        for tensor in self._of_parts():
            name = type_name(tensor)
            found[name] = found.get(name, 0) + tensor.nbytes
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def types_without_kernel(self) -> list[str]:
        """The names of the types that no kernel multiplies, so that weights of them are converted. Call `check` first."""
        return sorted({type_name(tensor) for tensor in self._of_parts() if _format(tensor) is None})

    def is_widened_mix(self, i: int, part: str) -> bool:
        """Whether a layer's part, which is one weight, has tensors of types that make it a widened one. Call `check` first."""
        formats = {_format(self._tensors[named.name]) for named in self._parts.get((part, i), ())}
        return len(formats) > 1 and not formats <= DENSE_FORMATS

    def _of_parts(self) -> Iterator[Tensor | SafeTensor]:
        return (self._tensors[named.name] for tensors in self._parts.values() for named in tensors)

    def weight_bytes_per_token(self) -> int:
        """The bytes of the weights that one token is multiplied by. Call `check` first."""
        experts, total = self.config.experts, 0
        for (part, i), tensors in self._parts.items():
            if i >= self.config.layers:
                continue  # for next-token prediction
            size = sum(self._tensors[named.name].nbytes for named in tensors)
            if experts is not None and part.startswith("experts_"):
                size = size * experts.rule.used // experts.count
            if part == "embedding" and not self.config.tied:
                size //= self.config.vocab_size
            total += size
        return total

    def has(self, part: str, i: int = -1) -> bool:
        """Whether the checkpoint has the part. Call `check` first, as for all that follows."""
        return (part, i) in self._parts

    def name(self, part: str, i: int = -1) -> str:
        """The tensor's name in the checkpoint, of several the first."""
        return self._parts[part, i][0].name

    def vector(self, part: str, i: int = -1) -> np.ndarray:
        """A bias or the weight of a norm, float32, flat, with the config's norm_shift added to the latter, but not to that of a
        gated norm."""
        values = read_float32(self._tensors[self.name(part, i)]).reshape(-1)
        shift = self.config.norm_shift if part.endswith("norm") and part != "gated_norm" else 0.0
        return values + np.float32(shift) if shift else values

    def optional_vector(self, part: str, i: int = -1) -> np.ndarray | None:
        """`vector`, or None where the checkpoint does not have the part."""
        return self.vector(part, i) if self.has(part, i) else None

    def weight(self, part: str, i: int = -1) -> Stored:
        """A weight (inputs, outputs), in the file's own format if that has a kernel; read from the file on demand."""
        return self._rows([self._tensors[self.name(part, i)]])

    def stack(self, part: str, i: int = -1) -> Stored:
        """Several weights of one shape, their outputs one after the other: the slices of a tensor, or tensors."""
        return self._rows([self._tensors[named.name] for named in self._parts[part, i]])

    def stored(self, part: str, i: int = -1) -> tuple[np.ndarray, Format]:
        """The bytes of a part, of each value on the last axis, and its format: a dense one, or that of the blocks which they
        are parts of."""
        tensor = self._tensors[self.name(part, i)]
        format_ = _format(tensor)
        assert format_ is not None
        return tensor.read().view(np.uint8).reshape(*tensor.shape, -1), format_

    def values(self, part: str, i: int = -1) -> Iterator[np.ndarray]:
        """A weight's values, float32 in the file's shape, tensor by tensor."""
        tensors = (self._tensors[named.name] for named in self._parts[part, i])
        return (self._widened([tensor]).values().reshape(tensor.shape) for tensor in tensors)

    def _scale(self, tensor: Tensor | SafeTensor) -> np.ndarray:
        """The factors of the squares of a float8 tensor, which may have one for all."""
        scale = read_float32(self._tensors[tensor.name + _SCALE])
        return np.full(_scales_of(tensor), scale.reshape(())) if scale.size == 1 else scale

    def _rows(self, tensors: Sequence[Tensor | SafeTensor]) -> Stored:
        formats = {_format(tensor) for tensor in tensors}
        format_ = next(iter(formats))
        if len(formats) > 1 or format_ is None:
            return Stored(self._widened(tensors), not formats <= DENSE_FORMATS)  # dense formats together are float32, exactly
        parts = [FilePart(*tensor.place, _row_count(tensor), f"tensor {tensor.name}") for tensor in tensors]
        return Stored(FileWeight(parts, format_, tensors[0].shape[-1], tensors[0].nbytes // parts[0].rows))

    def _widened(self, tensors: Sequence[Tensor | SafeTensor]) -> WidenedWeight:
        def pieces() -> Iterator[np.ndarray]:
            for tensor in tensors:
                is_float8 = type_name(tensor) == FLOAT8
                yield from read_pieces(tensor, self._scale(tensor) if is_float8 else None)

        return WidenedWeight(pieces, tensors[0].shape[-1], sum(map(_row_count, tensors)))


def open_checkpoint(path: Path, indexer_types: Sequence[str] | None = None) -> Checkpoint:
    """The GGUF file or the folder at `path`. indexer_types: as for `load`.

    Raises ModelError if it cannot be opened, is corrupt or not supported."""
    is_folder = os.path.isdir(path)  # Path.is_dir raises for some paths, such as a name that is too long
    return Checkpoint(ModelFolder(path) if is_folder else open_gguf(path), indexer_types)


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A vector may be a matrix of one row or one column."""
    return tuple(size for size in shape if size != 1)


def _scales_of(tensor: Tensor | SafeTensor) -> tuple[int, ...]:
    """The shape of the scales of a float8 tensor."""
    return tuple(-(-size // TILE) for size in tensor.shape)


def _is_quantised(tensor: SafeTensor) -> bool:
    """Whether it is a matrix of float8, or experts in blocks."""
    return (tensor.type == FLOAT8 and len(tensor.shape) == 2) or (tensor.type == _BYTES and tensor.name.endswith(_IN_BLOCKS))


def _format(tensor: Tensor | SafeTensor) -> Format | None:
    if tensor.type == _BYTES:
        return Format.MXFP4
    return _DENSE.get(tensor.type) if isinstance(tensor, SafeTensor) else _NATIVE.get(tensor.type)


def _row_count(tensor: Tensor | SafeTensor) -> int:
    return math.prod(tensor.shape[:-1])
