"""Moves memory that every step reads into huge pages: with small pages, TLB misses slow down reading."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor, compiler, nn

from decodestep._base.memory import HUGE_PAGE

_SIZE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")  # exists only on Linux
_WHEN_WRITTEN, _NOW = 14, 25  # Linux's MADV_HUGEPAGE and MADV_COLLAPSE
_NEAR = 8192  # the largest gap that an allocator leaves between adjacent tensors


def collapse(tensors: Iterable[Tensor]) -> int:
    """Moves the memory of tensors into huge pages, if the system has them; addresses and contents do not change.

    Returns the number of bytes now in huge pages: 0 on systems without them, or for a mapped file.
    """
    return sum(_advise(first, end, _NOW) for first, end in _ranges(tensors))


def ask(tensor: Tensor) -> None:
    """Requests huge pages for a newly allocated tensor, to take effect when it is written to."""
    if tensor.numel() * tensor.itemsize >= HUGE_PAGE and not compiler.is_compiling():
        for first, end in _ranges([tensor]):
            _advise(first, end, _WHEN_WRITTEN)


def _ranges(tensors: Iterable[Tensor]) -> list[tuple[int, int]]:
    """The memory ranges [first, end) of plain contiguous tensors, with adjacent ones merged."""
    plain = [t for t in tensors if type(t) in (Tensor, nn.Parameter) and t.is_cpu and t.is_contiguous() and t.numel()]
    places = sorted((t.data_ptr(), t.data_ptr() + t.numel() * t.itemsize) for t in plain)
    joined: list[tuple[int, int]] = []
    for first, end in places:
        if joined and first <= joined[-1][1] + _NEAR:
            first, before = joined.pop()
            end = max(end, before)
        joined.append((first, end))
    return joined


def _advise(first: int, end: int, advice: int) -> int:
    """Calls madvise for the whole huge pages within [first, end). Returns the bytes for which it succeeded."""
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
