"""Checksums of bytes in memory and of a file, against Python's integers."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from decodestep import _native

PIECE, LANES, FACTOR = 2**20, 8, 0x9E3779B97F4A7C15


def oracle(data: np.ndarray) -> np.ndarray:
    found = []
    for first in range(0, data.size, PIECE):
        lanes = list(range(1, LANES + 1))
        for line in data[first : first + PIECE].view("<u8").reshape(-1, LANES).tolist():
            for k, word in enumerate(line):
                product = (lanes[k] ^ word) * FACTOR % 2**64
                lanes[k] = (product << 31 | product >> 33) % 2**64
        found.append(lanes)
    return np.array(found, np.uint64).reshape(-1, LANES)


def checksums(data: np.ndarray, threads: int = 1) -> np.ndarray:
    made = np.zeros((-(-data.size // PIECE), LANES), np.uint64)
    _native.checksum_bytes(memory=data, checksums=made, threads=threads)
    return made


def filled(size: int) -> np.ndarray:
    return np.random.default_rng(size).integers(0, 256, size, np.uint8)


@pytest.mark.parametrize("size", [0, 64, 640, PIECE, PIECE + 64, 3 * PIECE - 128])
def test_checksums_in_memory_and_of_a_file(tmp_path, size):
    data, path = filled(size), tmp_path / "file"
    path.write_bytes(b"before" + data.tobytes() + b"after")
    expected = oracle(data)
    with path.open("rb") as file:
        for threads in (1, 3):
            assert np.array_equal(checksums(data, threads), expected)
            memory, found = np.zeros_like(data), np.zeros_like(expected)
            read = dict(file=file.fileno(), at=6, memory=memory, checksums=found, threads=threads)
            assert _native.read_checked_bytes(**read) == 0
            assert np.array_equal(memory, data) and np.array_equal(found, expected)


def test_any_word_that_differs_has_another_checksum():
    data = filled(4096)
    before = checksums(data)
    for at in range(data.size):
        data[at] ^= 1 << at % 8
        assert ((checksums(data) != before).sum()) == 1
        data[at] ^= 1 << at % 8
    # The highest bits of two words of a lane, whose sums and products would not tell.
    data[[7, 71]] ^= 128
    assert (checksums(data) != before).any()


def test_a_file_that_is_too_short_or_cannot_be_read_is_told(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(filled(PIECE + 63).tobytes())
    memory, found = np.zeros(PIECE + 64, np.uint8), np.zeros((2, LANES), np.uint64)
    with path.open("rb") as file:
        number = file.fileno()
        assert _native.read_checked_bytes(file=number, at=0, memory=memory, checksums=found, threads=2) == -1
    assert _native.read_checked_bytes(file=2**30, at=0, memory=memory, checksums=found, threads=2) == errno.EBADF
    for wrong in ({"memory": memory[:-1]}, {"checksums": found[:1]}, {"at": -1}, {"file": -1}, {"file": 2**31}):
        given = dict(file=2**30, at=0, memory=memory, checksums=found, threads=1) | wrong
        with pytest.raises(ValueError, match="_native: "):
            _native.read_checked_bytes(**given)
