"""Memory for weights that are read, packed and forgotten: what is free again serves the next one."""

from __future__ import annotations

import weakref

import numpy as np

_KEPT = 2  # free pieces: of a layer's large weights one is packed at a time


class ReadMemory:
    """Gives memory that the system has handed out before: its first use costs more than reading a file from the page cache."""

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []  # by size

    def take(self, size: int) -> np.ndarray:
        """uint8 (size,), contiguous, not initialised. Its memory is used again once neither it nor a view of it is in use."""
        # No more than twice what is wanted: a small weight that is kept would keep a large piece.
        i = next((i for i, piece in enumerate(self._free) if size <= piece.size <= 2 * size), None)
        if i is None:
            self._free = [piece for piece in self._free if piece.size > size]  # smaller ones make room
            piece = np.empty(size, np.uint8)
        else:
            piece = self._free.pop(i)
        # Of a memoryview: NumPy then makes every view of the array hold the array, and not what it is a part of.
        array = np.frombuffer(piece.data[:size], np.uint8)
        pool = weakref.ref(self)  # what outlives the pool must not keep its other pieces
        weakref.finalize(array, _give_back, pool, piece).atexit = False
        return array


def _give_back(pool: weakref.ref[ReadMemory], piece: np.ndarray) -> None:
    if (memory := pool()) is not None:
        memory._free = sorted([*memory._free, piece], key=len)[-_KEPT:]
