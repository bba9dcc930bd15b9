"""Small JSON files of a model folder, read within bounds."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from decodestep.errors import ModelError
from decodestep.files.file_bytes import FileBytes

MAX_BYTES = 1 << 28


def read_text(path: Path) -> str:
    """A file's text. ModelError if it cannot be read, is longer than 256 MiB, or is not UTF-8."""
    file = FileBytes(path)
    if file.size > MAX_BYTES:
        raise ModelError(f"{path}: longer than {MAX_BYTES >> 20} MiB")
    try:
        return bytes(file.read(0, file.size)).decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: corrupt: not UTF-8 at byte {error.start}") from error


def parse_object(where: Path | str, text: str | bytes) -> dict[str, Any]:
    """A JSON object, whose keys are each there once."""
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{where}: corrupt: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{where}: corrupt: not a JSON object")
    return value


def read_object(path: Path) -> dict[str, Any]:
    return parse_object(path, read_text(path))


def read_object_if_there(path: Path) -> dict[str, Any]:
    """{} if there is no such file."""
    return read_object(path) if path.exists() else {}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"{twice!r:.80} occurs twice")
    return found
