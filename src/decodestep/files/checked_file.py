"""Files that appear as a whole, and whose SHA-256 is checked when they are read.

form        a line that says what the file is, and its version
parts       lines of JSON, and bytes whose number the reader knows
32 bytes    SHA-256 of all before
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from decodestep.errors import CacheFileError

_DIGEST_BYTES = hashlib.sha256().digest_size
_LONGEST_LINE = 2**12
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


def is_there(path: Path) -> bool:
    """Whether there is a file, perhaps behind a link. Raises CacheFileError for what is no file: a pipe would be waited for, a
    device replaced by a file."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(mode):
        raise CacheFileError(f"{path}: must be a file; it is {_KINDS.get(stat.S_IFMT(mode), 'a device')}")
    return True


@contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """Yields a file that takes the place of `path` at the end of the block: that is there as a whole, or as it was before.

    mode: its permissions, less those that the umask takes away; None: those of the file whose place it takes, else 0o666.
    Until then it is NAME.*.part; where the process is killed this is left until the next one writes the file. Raises
    CacheFileError where `path` is no file, and OSError, which names it, where it cannot be written.
    """
    before = path.stat() if is_there(path) and mode is None else None
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    given = 0o666 if mode is None else mode

    def create(name: str, flags: int) -> int:
        return os.open(name, flags, given if before is None else 0o600)

    try:
        _remove_left(path)
        with open(part, "xb", opener=create) as file:
            with suppress(OSError):  # of a file system without locks, where parts are left
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if before is not None:
                os.fchmod(file.fileno(), before.st_mode & 0o777)
            yield file
            file.flush()
            os.fsync(file.fileno())
            part.replace(path)  # while it is locked
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        with suppress(OSError):
            part.unlink()


def _remove_left(path: Path) -> None:
    """Removes what killed processes have left: a part that is being written is locked."""
    for part in path.parent.glob(f"{glob.escape(path.name)}.{'[0-9a-f]' * 8}.part"):
        with suppress(OSError), part.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


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
