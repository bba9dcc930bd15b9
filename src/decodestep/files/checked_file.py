"""Files that appear as a whole, and whose SHA-256 is checked when they are read.

form        a line that says what the file is, and its version
parts       lines of JSON, and bytes whose number the reader knows
32 bytes    SHA-256 of all before
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from decodestep.errors import CacheFileError

_DIGEST_BYTES = hashlib.sha256().digest_size
_LONGEST_LINE = 2**12


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yields a file that takes the place of `path` at the end of the block: that is there as a whole, or as it was before.

    Until then it is NAME.*.part, which is left where the process is killed.
    """
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    file = part.open("xb")
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


class CheckedWriter:
    """Writes the form, then what it is given, then the digest."""

    def __init__(self, file: BinaryIO, form: bytes) -> None:
        self._file, self._digest = file, hashlib.sha256()
        self.put(form)

    def put(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._digest.update(data)

    def line(self, value: object) -> None:
        self.put(json.dumps(value, separators=(",", ":")).encode() + b"\n")

    def end(self) -> None:
        self._file.write(self._digest.digest())


class CheckedReader:
    """Reads what `CheckedWriter` wrote. Nothing may be believed before `end` has returned.

    kind: what the file should be, for messages. Methods raise CacheFileError for a file that is another or damaged.
    """

    def __init__(self, file: BinaryIO, path: Path, form: bytes, kind: str) -> None:
        self._file, self._path, self._digest = file, path, hashlib.sha256()
        found = file.read(len(form))
        self._digest.update(found)
        if found != form:
            self.fail(f"is no {kind}")

    def line(self, longest: int = _LONGEST_LINE) -> Any:
        line = self._file.readline(longest)
        self._digest.update(line)
        try:
            return json.loads(line) if line.endswith(b"\n") else self.fail("is damaged")
        except (ValueError, RecursionError):
            self.fail("is damaged")

    def take(self, count: int) -> bytes:
        data = self._file.read(count)
        self._digest.update(data)
        return data if len(data) == count else self.fail("is damaged")

    def end(self) -> None:
        if self._file.read(_DIGEST_BYTES) != self._digest.digest():
            self.fail("is damaged")

    def fail(self, what: str) -> NoReturn:
        raise CacheFileError(f"{self._path}: {what}")
