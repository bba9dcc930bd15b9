"""Memory of this machine: cache sizes, a plain read of an array, bandwidth; and keeping freed memory in the process.

The read is libc's wmemchr searching for a value that does not occur: it only loads and compares, in the machine's widest
vectors, and was the fastest read at every size (compared with NumPy's and torch's max, sum and dot, and memchr).
"""

from __future__ import annotations

import ctypes
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

READ_BYTES = 2**28  # far more than the caches hold
_WORD = ctypes.sizeof(ctypes.c_wchar)
_ABSENT = 0x7FC17FC1  # two bfloat16 NaNs, or a float32 NaN, with payloads that no arithmetic makes
_wmemchr = ctypes.CDLL(None).wmemchr
_wmemchr.argtypes, _wmemchr.restype = (ctypes.c_void_p, ctypes.c_int32, ctypes.c_size_t), ctypes.c_void_p


def one_read(array: np.ndarray) -> Callable[[], Any]:
    """A call that reads the bytes of a contiguous array once, to its last whole word."""
    address, words = array.ctypes.data, array.nbytes // _WORD

    def read(_alive: np.ndarray = array) -> Any:
        return _wmemchr(address, _ABSENT, words)

    if read() is not None:
        raise ValueError("one_read: array must be without the word that is looked for")
    return read


def keep_freed_memory() -> None:
    """Makes the C library keep freed memory, as in a process that only makes calls of one kind. Otherwise it may return large
    blocks to the system, depending on what other calls freed before, and the kernel clears their pages again: the same call
    of torch takes 34 ms in one process and 50 in the next.
    """
    trim_threshold, mmap_threshold, most = -1, -3, 2**31 - 1
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's; others keep what they like
    for threshold in (trim_threshold, mmap_threshold) if mallopt else ():
        mallopt(threshold, most)


@cache
def call_seconds() -> float:
    """What a `one_read` of nothing but one word takes: Python's share of every read."""
    read, times = one_read(np.zeros(1, np.float32)), []
    for _ in range(9):
        start = time.perf_counter()
        for _ in range(1000):
            read()
        times.append((time.perf_counter() - start) / 1000)
    return statistics.median(times)


@cache
def plain_read(threads: int = 1) -> Callable[[], Any]:
    """A call that reads READ_BYTES once, a part on each of this many threads."""
    parts = [one_read(block) for block in np.array_split(np.ones(READ_BYTES // 4, np.float32), threads)]
    pool = ThreadPoolExecutor(threads)
    return lambda: list(pool.map(lambda read: read(), parts))


@cache
def bandwidth(threads: int = 1) -> float:
    """Bytes a second of the quickest of seven plain reads, measured once, at the first call."""
    read, times = plain_read(threads), []
    for _ in range(8):
        start = time.perf_counter()
        read()
        times.append(time.perf_counter() - start)
    return READ_BYTES / min(times[1:])


@cache
def cache_bytes(level: int) -> int:
    """The size of one data or unified cache of a level; where the system does not tell, 1 MiB for L2 and 32 MiB for L3."""
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        if (folder / "level").read_text().strip() == str(level) and (folder / "type").read_text().strip() != "Instruction":
            size = (folder / "size").read_text().strip()
            return int(size.rstrip("KM")) * {"K": 2**10, "M": 2**20}.get(size[-1], 1)
    known = os.sysconf(f"SC_LEVEL{level}_CACHE_SIZE") if f"SC_LEVEL{level}_CACHE_SIZE" in os.sysconf_names else 0
    return known if known > 0 else {1: 2**15, 2: 2**20, 3: 2**25}[level]


def home(size: int) -> str:
    """Where this many bytes are if they were read last: L2 or L3 if they leave it a quarter, else DRAM."""
    return next((f"L{level}" for level in (2, 3) if 4 * size <= 3 * cache_bytes(level)), "DRAM")
