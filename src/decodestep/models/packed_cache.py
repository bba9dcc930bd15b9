"""A model's weights as they are packed in memory, in a file beside the model, from which later loads read them.

    head        a `files.checked_file`: a line of JSON with what the weights hang on, one with the size of their values, and
                one with their tree (`weights_tree`)
    zeros       up to a multiple of 4096 bytes
    values      the run of the tree
    32 bytes    the `files.checked_bytes.Digest` of the values

The file is read and not mapped, as all files of models are: `files.file_bytes`. It is used once all of it has been found to be
as it was written; a file that is another one, cut short or damaged is made anew.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

import decodestep
from decodestep._base.memory import new_bytes
from decodestep._base.threads import isa
from decodestep.decoding.config import Config
from decodestep.decoding.layer_weights import Weights
from decodestep.decoding.rope import Rope
from decodestep.errors import CacheFileError
from decodestep.files.checked_bytes import DIGEST_BYTES, PIECE, Digest, read_checked
from decodestep.files.checked_file import CheckedReader, CheckedWriter, is_there, replacing
from decodestep.models.checkpoint import Checkpoint
from decodestep.models.convert import Progress
from decodestep.models.weights_tree import CLASSES, TreeOf, from_tree
from decodestep.weights.blocks import BLOCKS

SUFFIX = ".decodestep-packed"
_FORM = b"decodestep packed weights 1\n"  # another number where panels have another order of bytes
_LONGEST_TREE = 2**26
_PAGE = 4096
_WRITTEN_AT_ONCE = 64 * PIECE
_OF_HEADER = ("config", "ropes")  # of the model
_FIELDS = [field.name for field in fields(Weights) if field.name not in _OF_HEADER]

_LOG = logging.getLogger(__name__)


def cached(
    checkpoint: Checkpoint,
    loaded_as: tuple[object, ...],
    of_header: tuple[Config, tuple[Rope, ...]],
    convert: Callable[[], Weights],
    progress: Progress | None,
) -> Weights:
    """The weights of the file beside the model; else those that `convert` makes, which the file then has.

    loaded_as: the arguments that decide how weights are packed.
    of_header: the config and the ropes of the weights.
    progress: as of `convert`, which calls it too; called where the file has been read.
    """
    checkpoint.check()
    path, (config, ropes) = cache_path(checkpoint.path), of_header
    key = _key(checkpoint, loaded_as, config)
    found = None
    try:
        kept = is_there(path)
    except (CacheFileError, OSError) as error:
        _LOG.warning("%s; packed weights are not kept", _text(error))
        return convert()
    if kept and not checkpoint.has_changed():
        try:
            with path.open("rb") as file:
                found = _read(file, path, key)
        except (CacheFileError, OSError) as error:
            _LOG.warning("%s; it is made anew", _text(error))
    if found is not None:
        count = config.layers + config.next_token_layers
        if progress is not None:
            progress(count, count)
        return Weights(config=config, ropes=ropes, **found)
    weights = convert()
    if checkpoint.has_changed():
        _LOG.warning("%s changed while it was read: its packed weights are not kept", checkpoint.path)
        return weights
    try:
        with replacing(path, checkpoint.permissions()) as file:
            _write(file, key, weights)
    except (CacheFileError, OSError) as error:
        _LOG.warning("%s cannot be written: %s", path, getattr(error, "strerror", None) or error)
    return weights


def _text(error: CacheFileError | OSError) -> str:
    """What an error says, with the path."""
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)


def cache_path(model: Path) -> Path:
    """The file of packed weights of the model in this file or folder."""
    return Path(os.path.abspath(model) + SUFFIX)


def _key(checkpoint: Checkpoint, loaded_as: tuple[object, ...], config: Config) -> str:
    """What differs wherever packed weights could: of the package, the processor, the load, the model and its files."""
    layout = ({name: block[1:] for name, block in BLOCKS.items()}, CLASSES)
    facts = (decodestep.__version__, isa(), layout, loaded_as, config, checkpoint.file_states())
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _read(file: BinaryIO, path: Path, key: str) -> dict[str, Any]:
    """The fields of the weights that are not in the header of the model."""
    reader = CheckedReader(file, path, _FORM, "file of packed weights")
    if reader.line() != key:
        reader.fail("is of another model, version or kind of processor, or of a model that is loaded in another way")
    size, tree = reader.line(), reader.line(_LONGEST_TREE)
    reader.end()
    at = _padded(file.tell())
    if type(size) is not int or os.fstat(file.fileno()).st_size != at + size + DIGEST_BYTES:
        reader.fail("is damaged")
    file.seek(at + size)
    try:
        run = read_checked(file.fileno(), at, size, file.read())
        return dict(zip(_FIELDS, from_tree(tree, run), strict=True))
    except CacheFileError as error:
        reader.fail(str(error))
    except (ValueError, LookupError, TypeError, AttributeError):
        reader.fail("is damaged")


def _write(file: BinaryIO, key: str, weights: Weights) -> None:
    of, digest, writer = TreeOf(tuple(getattr(weights, name) for name in _FIELDS)), Digest(), CheckedWriter(file, _FORM)
    for value in (key, of.size, of.tree):
        writer.line(value)
    writer.end()
    file.write(bytes(_padded(file.tell()) - file.tell()))
    for part in _parts(of):
        digest.add(part)
        file.write(part.data)
    file.write(digest.value())


def _parts(of: TreeOf) -> Iterator[np.ndarray]:
    """The run, in parts of whole pieces but the last one, each in the same memory."""
    memory, filled = new_bytes(_WRITTEN_AT_ONCE), 0
    for values in of.values():
        while len(values):
            count = min(len(values), len(memory) - filled)
            memory[filled : filled + count] = values[:count]
            values, filled = values[count:], filled + count
            if filled == len(memory):
                yield memory
                filled = 0
    if filled:
        yield memory[:filled]


def _padded(at: int) -> int:
    return -(-at // _PAGE) * _PAGE
