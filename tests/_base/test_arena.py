"""Arrays of an arena lie side by side, aligned and apart, in blocks that go with their last array."""

import numpy as np
import pytest

from decodestep._base.memory import HUGE_PAGE, Arena, untouched_zeros
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import PackedWeight


@pytest.fixture
def blocks(monkeypatch):
    """The sizes of the blocks that an arena asks for, which are of 1000 bytes or one array."""
    asked = []

    def recorded(shape, dtype, *, huge_pages):
        assert huge_pages
        asked.append(shape[0])
        return untouched_zeros(shape, dtype, huge_pages=True)

    monkeypatch.setattr("decodestep._base.memory.untouched_zeros", recorded)
    monkeypatch.setattr(Arena, "_BLOCK", 1000)
    return asked


def test_arrays_are_aligned_and_apart(blocks):
    arena = Arena()
    made = [arena.new_bytes(size) for size in (1, 64, 65, 700, 300, 1000, 5000, 1)]
    for i, array in enumerate(made):
        assert array.ctypes.data % 64 == 0
        assert not array.any()
        array[:] = i + 1
    assert all((array == i + 1).all() for i, array in enumerate(made))
    assert arena.new_bytes(0).shape == (0,)
    assert blocks == [1000, 1000, 1000, 5000, 1000]


def test_an_array_that_just_fits_begins_no_block(blocks):
    arena = Arena()
    arena.new_bytes(60)
    arena.new_bytes(1000 - 64)
    assert blocks == [1000]
    arena.new_bytes(1)
    assert blocks == [1000, 1000]


def test_weights_lie_side_by_side():
    arena = Arena()
    weight = PackedWeight.from_array(np.ones((32, 32), np.float32))
    first, second = (LinearPanels.pack(weight, allocate=arena.new_bytes).data for _ in range(2))
    assert second.ctypes.data == first.ctypes.data + first.nbytes
    assert np.array_equal(first, LinearPanels.pack(weight).data)


@pytest.mark.parametrize("size", [2**62, 2**63])
def test_what_no_address_space_holds(size):
    with pytest.raises(MemoryError, match=f"no address space for {size} bytes"):
        Arena().new_bytes(size)
    assert Arena().new_bytes(HUGE_PAGE).nbytes == HUGE_PAGE
