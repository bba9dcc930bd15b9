"""Memory aligned to cache lines or in huge pages, and freed memory returned to the system."""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

HUGE_PAGE = 2**21
Allocate: TypeAlias = Callable[[int], np.ndarray]  # allocate(size): uint8 (size,), aligned to a cache line
_CACHE_LINE = 64


def new_bytes(size: int) -> np.ndarray:
    """uint8 (size,), not initialised, aligned to a cache line.

    Aligned vectors never cross a cache line. Also, on AMD's Zen 3 reading a file into it is four times as fast as into NumPy's
    own memory, which starts 16 bytes after a page: each load of the copy then stalls on the store before it.
    """
    space = np.empty(size + _CACHE_LINE, np.uint8)
    return space[-space.ctypes.data % _CACHE_LINE :][:size]


def untouched_zeros(shape: tuple[int, ...], dtype: np.dtype, *, huge_pages: bool) -> np.ndarray:
    """Zeros without memory: the system allocates it on write, 4 KB or 2 MB at a time.

    Huge pages are for arrays whose neighbours are written soon after: one touched byte takes all of 2 MB.
    Raises MemoryError if the address space has no room.
    """
    size = math.prod(shape) * dtype.itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    try:
        memory = mmap.mmap(-1, max(1, size), flags=flags)
    except (OSError, OverflowError) as error:  # OverflowError: more than any address space
        raise MemoryError(f"no address space for {size} bytes") from error
    advice = getattr(mmap, "MADV_HUGEPAGE" if huge_pages else "MADV_NOHUGEPAGE", None)
    if advice is not None:
        memory.madvise(advice)
    return np.frombuffer(memory, np.uint8, size).view(dtype).reshape(shape)


class Arena:
    """Arrays side by side in huge pages, for weights: TLB misses of small pages cost 2 to 6 % of a decode step.

    They are allocated in blocks; a block is freed when none of its arrays is referenced any more.
    """

    _BLOCK = 32 * HUGE_PAGE  # the rest of one, which is too short for the next array, is never touched and takes no memory

    def __init__(self) -> None:
        self._free = np.empty(0, np.uint8)

    def new_bytes(self, size: int) -> np.ndarray:
        """uint8 (size,), zeros, aligned to a cache line."""
        start = -self._free.ctypes.data % _CACHE_LINE
        if start + size > self._free.size:
            start, self._free = 0, untouched_zeros((max(size, self._BLOCK),), np.dtype(np.uint8), huge_pages=True)
        made, self._free = self._free[start : start + size], self._free[start + size :]
        return made


def trim_heap() -> None:
    """Returns freed memory to the system: glibc keeps it, separately for each thread, wherever memory above it is in use."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(ctypes.c_size_t(0))
