"""Bytes and tensors of a file, read rather than mapped: truncating a mapped file would crash the process."""

from __future__ import annotations

import os
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from decodestep._base.memory import new_bytes
from decodestep.errors import ModelError


class FileBytes:
    """An open file, read by offset; closed with the last reference to it. status: its own when it was opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            status = path.stat()
            if not (stat.S_ISREG(status.st_mode) and status.st_size):
                raise ModelError(f"{path}: cannot be opened: {'the file is empty' if path.is_file() else 'not a file'}")
            self._opened = path.open("rb", buffering=0)
            weakref.finalize(self, self._opened.close)
            self.status = os.fstat(self._opened.fileno())
            self.size = self.status.st_size
        except (OSError, ValueError) as error:  # a path with a null character is a ValueError
            raise ModelError(f"{path}: cannot be opened: {getattr(error, 'strerror', None) or error}") from error

    @property
    def descriptor(self) -> int:
        """The descriptor of the open file."""
        return self._opened.fileno()

    def read(self, at: int, size: int) -> np.ndarray:
        """uint8 (size,): the bytes from offset `at`. Several threads may read at once."""
        try:
            data = new_bytes(size)
        except MemoryError as error:
            raise ModelError(f"{self.path}: {size} bytes cannot be read: {error}") from error
        view, done = data.data, 0
        try:
            while done < len(view):
                count = os.preadv(self.descriptor, [view[done:]], at + done)
                if not count:
                    raise ModelError(f"{self.path}: truncated while it was read, at byte {at + done}")
                done += count
        except OSError as error:
            raise ModelError(f"{self.path}: {size} bytes cannot be read: {error.strerror or error}") from error
        return data


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: `nbytes` bytes from `offset` on."""

    name: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int
    _file: FileBytes = field(repr=False)

    @property
    def path(self) -> Path:
        return self._file.path

    def read(self) -> np.ndarray:
        """Its bytes, uint8, one axis; a new array each time. ModelError if the file has become shorter."""
        return self._file.read(self.offset, self.nbytes)

    @property
    def file_status(self) -> os.stat_result:
        """Of its file, when that was opened."""
        return self._file.status

    @property
    def place(self) -> tuple[int, int]:
        """The file descriptor, and the offset of the tensor's first byte."""
        return self._file.descriptor, self.offset


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Puts the path before the message of a ModelError that names no file in it: of metadata, a tokenizer or a template."""
    try:
        yield
    except ModelError as error:
        if str(error).startswith((f"{path}:", f"{path}{os.sep}")):
            raise
        raise ModelError(f"{path}: {error}") from error
