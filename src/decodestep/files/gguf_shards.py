"""GGUF files in several parts, NAME-00001-of-00003.gguf and so on: the first has the metadata, each has its own tensors."""

from __future__ import annotations

import re
from pathlib import Path

from decodestep.errors import ModelError
from decodestep.files import metadata as md
from decodestep.files.gguf_file import GgufFile

_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"
_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_MOST = 99999


def open_gguf(path: Path) -> GgufFile:
    """The file at `path`, with the tensors of all parts if it is the first of several. Reads no weight.

    Raises ModelError for what `GgufFile` refuses, in any part; a part that is missing, or is not the one that its name says; a
    first part that is not the first; tensors that are in two parts, or fewer than the first part announces.
    """
    first = GgufFile(path)
    count = md.integer(first.metadata, _COUNT, 1, least=0, most=_MOST)
    if count < 2:
        return first
    match = _NAME.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        raise ModelError(f"{path}: part of {count} files, whose names must end in -00001-of-{count:05}.gguf")
    names = [f"{match[1]}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    _check_number(first, 0, count, f"; the first is {names[0]}")
    for number, name in enumerate(names[1:], 1):
        if not path.with_name(name).exists():
            raise ModelError(f"{path}: has {count} parts, of which {name} is not in this folder")
        part = GgufFile(path.with_name(name))
        _check_number(part, number, count)
        twice = next((tensor for tensor in part.tensors if tensor in first.tensors), None)
        if twice is not None:
            raise ModelError(f"{part.path}: corrupt: tensor {twice!r:.80} is in another part too")
        first.tensors |= part.tensors
    announced = md.integer(first.metadata, _TENSORS, len(first.tensors), least=0, most=1 << 31)
    if announced != len(first.tensors):
        raise ModelError(f"{path}: its parts have {len(first.tensors)} tensors, not {announced}")
    for key in (_NUMBER, _COUNT, _TENSORS):  # what is made of all parts is one file
        first.metadata.pop(key, None)
    return first


def _check_number(part: GgufFile, number: int, count: int, more: str = "") -> None:
    found = tuple(md.integer(part.metadata, key, least=0, most=_MOST) for key in (_NUMBER, _COUNT))
    if found != (number, count):
        raise ModelError(f"{part.path}: is part {found[0] + 1} of {found[1]}, not {number + 1} of {count}{more}")
