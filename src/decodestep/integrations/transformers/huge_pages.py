"""Memory that every step reads, in the system's huge pages: with small ones a core waits for addresses too."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor, compiler, nn

_SIZE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")  # Linux alone has it
_WHEN_WRITTEN, _NOW = 14, 25  # MADV_HUGEPAGE and MADV_COLLAPSE of Linux
_LEAST_BYTES = 1 << 21
_NEAR = 8192  # what an allocator may put between two tensors


def collapse(tensors: Iterable[Tensor]) -> int:
    """Moves the memory of tensors into huge pages, as far as the system has them; addresses and contents stay as they are.

    Returns the bytes that lie in huge pages then: 0 on systems without them, or where a file is mapped.
    """
    return sum(_advised(first, end, _NOW) for first, end in _ranges(tensors))


def ask(tensor: Tensor) -> None:
    """Asks for huge pages under a tensor that has just been allocated, for when it is written to."""
    if tensor.numel() * tensor.itemsize >= _LEAST_BYTES and not compiler.is_compiling():
        for first, end in _ranges([tensor]):
            _advised(first, end, _WHEN_WRITTEN)


def _ranges(tensors: Iterable[Tensor]) -> list[tuple[int, int]]:
    """The memory of plain contiguous tensors, [first, end), adjacent ones as one."""
    plain = [t for t in tensors if type(t) in (Tensor, nn.Parameter) and t.is_cpu and t.is_contiguous() and t.numel()]
    places = sorted((t.data_ptr(), t.data_ptr() + t.numel() * t.itemsize) for t in plain)
    joined: list[tuple[int, int]] = []
    for first, end in places:
        if joined and first <= joined[-1][1] + _NEAR:
            first, before = joined.pop()
            end = max(end, before)
        joined.append((first, end))
    return joined


def _advised(first: int, end: int, advice: int) -> int:
    """Gives the advice for the whole huge pages of [first, end); the bytes for which it was taken."""
    try:
        size = int(_SIZE.read_text())
    except OSError:
        return 0
    start = -(-first // size) * size
    length = (end - start) // size * size
    if length <= 0:
        return 0
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return length if advise(start, length, advice) == 0 else 0
