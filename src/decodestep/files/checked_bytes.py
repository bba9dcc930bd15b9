"""Bytes of a file with checksums, read and checked at the speed of memory: csrc/core/checked_bytes.h."""

from __future__ import annotations

import hashlib
import os

import numpy as np

from decodestep import _native
from decodestep._base.memory import untouched_zeros
from decodestep._base.threads import threads
from decodestep.errors import CacheFileError

PIECE = 2**20  # bytes that have checksums of their own
DIGEST_BYTES = hashlib.sha256().digest_size
_LINE = 64  # bytes, of which checksums are
_CHECKSUMS = 8  # of a piece


class Digest:
    """SHA-256 of the checksums of bytes.

    They are 64 bits wide and of every eighth word of a piece: that finds damage, not somebody who looks for other bytes with
    the same ones.
    """

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()

    def add(self, data: np.ndarray) -> None:
        """data: uint8. Bytes in whole pieces, the last one of whole lines of 64, have the digest of one run of them."""
        lines = data.size // _LINE * _LINE
        checksums = _new_checksums(lines)
        _native.checksum_bytes(memory=data[:lines], checksums=checksums, threads=threads())
        self._sha256.update(checksums.tobytes())
        self._sha256.update(data[lines:].tobytes())

    def value(self) -> bytes:
        return self._sha256.digest()


def read_checked(file: int, at: int, size: int, digest: bytes) -> np.ndarray:
    """uint8 (size,) in huge pages: the bytes of an open file from `at` on, a multiple of 64, whose `Digest` is this.

    Raises CacheFileError, without a path, for others; OSError where they cannot be read.
    """
    data, checksums = untouched_zeros((size,), np.dtype(np.uint8), huge_pages=True), _new_checksums(size)
    error = _native.read_checked_bytes(file=file, at=at, memory=data, checksums=checksums, threads=threads())
    if error > 0:
        raise OSError(error, os.strerror(error))
    if error < 0:
        raise CacheFileError("has become shorter")
    if hashlib.sha256(checksums.tobytes()).digest() != digest:
        raise CacheFileError("is damaged")
    return data


def _new_checksums(size: int) -> np.ndarray:
    return np.empty((-(-size // PIECE), _CHECKSUMS), np.uint64)
