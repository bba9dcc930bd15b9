"""Memory of read weights is used again, but never while an array can still reach it."""

from __future__ import annotations

import numpy as np

from decodestep.models.read_memory import ReadMemory


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_that_is_free_serves_the_next():
    memory = ReadMemory()
    first = memory.take(1000)
    at = address(first)
    del first
    second = memory.take(600)
    assert (second.shape, second.dtype, address(second)) == ((600,), np.uint8, at)
    assert second.flags.writeable and second.flags.c_contiguous
    assert memory.take(0).shape == (0,)


def test_a_view_keeps_the_memory():
    memory = ReadMemory()
    array = memory.take(1000)
    array[:] = 7
    views = [array[10:20].reshape(2, 5), array.view(np.uint16)[3:], array[::2].T, memoryview(array)[5:]]
    del array
    while views:
        memory.take(1000)[:] = 9
        assert all((np.asarray(view).view(np.uint8) == 7).all() for view in views)
        views.pop()


def test_a_small_weight_takes_no_large_piece_and_few_are_kept():
    memory = ReadMemory()
    pieces = [memory.take(size) for size in (1000, 2000, 4000)]
    addresses = [address(piece) for piece in pieces]
    del pieces
    kept = [memory.take(size) for size in (400, 2000, 4000)]
    assert [address(piece) for piece in kept[1:]] == addresses[1:]
    del kept
    assert [piece.size for piece in memory._free] == [2000, 4000]
    large = memory.take(5000)
    assert memory._free == [] and large.size == 5000


def test_what_outlives_the_memory_keeps_no_other_piece():
    import weakref

    memory = ReadMemory()
    kept, other = memory.take(10), memory.take(1000)
    owner = weakref.ref(other.base.obj)
    del other
    assert owner() is not None
    del memory
    assert owner() is None
    kept[:] = 1
