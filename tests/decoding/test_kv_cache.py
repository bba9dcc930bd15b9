"""The memory of pages: taken when they are written, or a little ahead."""

from __future__ import annotations

import numpy as np
import pytest

from decodestep._base.arrays import BFLOAT16
from decodestep._base.memory import HUGE_PAGE
from decodestep.decoding.kv_cache import SlabPages, _bytes_of_huge_pages, grouped_layout

LAYOUT = grouped_layout(30, 3, 64, BFLOAT16)


def huge_pages_of(memory):
    """The numbers of the huge pages that an array has a part of."""
    first = memory.ctypes.data
    return range(first // HUGE_PAGE, (first + memory.nbytes - 1) // HUGE_PAGE + 1)


@pytest.mark.parametrize("first", [0, 1, HUGE_PAGE - 1, 3 * HUGE_PAGE // 2])
@pytest.mark.parametrize("size", [1, 5000, HUGE_PAGE, HUGE_PAGE + 1, 2 * HUGE_PAGE + 7])
def test_each_huge_page_of_memory_has_one_byte(first, size):
    memory = np.zeros(5 * HUGE_PAGE, np.uint8)[first : first + size]
    found = _bytes_of_huge_pages(memory)
    assert all(byte.shape == (1,) and np.shares_memory(byte, memory) for byte in found)
    assert sorted(byte.ctypes.data // HUGE_PAGE for byte in found) == list(huge_pages_of(memory))


def test_memory_of_the_next_pages_is_taken_a_little_at_a_time():
    """Slabs of 45 pages: that of the next fresh page and no other, and none that somebody may be writing."""
    pages = SlabPages(LAYOUT, 200)
    slab = pages.keys.shape[3]
    pages.keys[0] = pages.values[0] = 1
    for fresh, number in ((1, 1), (slab - 1, None), (slab, None), (slab + 1, 2), (2 * slab + 1, 3), (3 * slab + 1, None)):
        calls = 0
        while pages.prepare(fresh):
            calls += 1
        parts = [] if number is None else [pages.keys[number], pages.values[number]]
        assert calls == sum(len(huge_pages_of(part)) for part in parts), fresh
    assert (pages.keys[0] == 1).all() and (pages.values[0] == 1).all() and not pages.keys[1:].any()
    assert not SlabPages(LAYOUT, slab).prepare(1)


def test_memory_is_taken_for_several_slabs_ahead_if_asked_for():
    pages = SlabPages(LAYOUT, 200)
    slab, slabs = pages.keys.shape[3], len(pages.keys)
    of_slab = [sum(len(huge_pages_of(part[number])) for part in (pages.keys, pages.values)) for number in range(slabs)]
    for fresh, ahead, numbers in ((0, 2, (0, 1)), (0, 2, ()), (1, 2, (2,)), (slab + 1, 9, (3,)), (4 * slab, 9, ())):
        calls = 0
        while pages.prepare(fresh, ahead):
            calls += 1
        assert calls == sum(of_slab[number] for number in numbers), (fresh, ahead)


def test_memory_that_has_been_handed_out_meanwhile_is_left_alone():
    pages = SlabPages(LAYOUT, 200)
    slab = pages.keys.shape[3]
    assert pages.prepare(1)  # the first of several calls for slab 1
    pages.keys[1] = pages.values[1] = 1
    while pages.prepare(slab + 1):
        pass
    assert (pages.keys[1] == 1).all() and (pages.values[1] == 1).all()
