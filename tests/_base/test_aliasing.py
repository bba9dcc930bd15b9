"""Which arrays have elements in the same memory: every answer against a list of all bytes."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from decodestep._base.aliasing import footprint, overlap, overlaps_itself, require_apart

SPACE = np.zeros(2000, np.int8)


@st.composite
def strided(draw: st.DrawFn) -> np.ndarray:
    """Any strides, negative ones and zeros too, of elements of one to four bytes."""
    rank, size = draw(st.integers(0, 4)), draw(st.sampled_from([1, 2, 4]))
    shape = [draw(st.integers(0, 4)) for _ in range(rank)]
    strides = [draw(st.integers(-14, 14)) for _ in range(rank)]
    start = 1000 + draw(st.integers(-30, 30))
    return as_strided(SPACE[start : start + size].view(f"V{size}"), shape, strides)


def bytes_of(array: np.ndarray) -> list[int]:
    """The addresses of all bytes of all elements."""
    start = array.__array_interface__["data"][0]
    places = [start + int(np.dot(index, array.strides)) for index in np.ndindex(*array.shape)]
    return [place + byte for place in places for byte in range(array.itemsize)]


@given(strided())
def test_an_array_overlaps_itself_where_a_byte_is_named_twice(array):
    addresses = bytes_of(array)
    assert overlaps_itself(array) == (len(set(addresses)) < len(addresses))


@given(strided(), strided())
def test_arrays_overlap_where_they_have_a_byte_in_common(a, b):
    assert overlap(a, b) == bool(set(bytes_of(a)) & set(bytes_of(b)))


def test_interleaved_elements_are_apart():
    whole = np.zeros((4, 6), np.float32)
    for part in (whole[:, ::2], whole[::-1, 1::3], whole.T, whole.T[::2]):
        assert not overlaps_itself(part)
    assert not overlaps_itself(as_strided(whole, (3, 2, 2), (8, 12, 60)))  # 12 lies among 0, 8 and 16
    left, right = whole[:, :4], whole[:, 4:]
    assert not overlap(left, right)
    require_apart("op", {"left": left, "right": right}, {"other": np.zeros(3)})


def test_strides_that_nobody_can_search_count_as_overlapping():
    rng = np.random.default_rng(0)
    shape, strides = rng.integers(5, 9, 10), rng.integers(10**9, 10**10, 10)
    began = time.monotonic()
    assert overlaps_itself(as_strided(SPACE[:1], shape, strides))
    assert time.monotonic() - began < 10


def test_what_is_written_is_refused_unless_it_is_apart():
    whole = np.zeros((4, 6), np.float32)
    with pytest.raises(
        ValueError, match=r"^op: a must be of elements that do not overlap in memory; got float32 2x4x6 of strides"
    ):
        require_apart("op", {"a": np.broadcast_to(whole, (2, 4, 6))}, {})
    with pytest.raises(ValueError, match="^op: a must be apart from b in memory; got "):
        require_apart("op", {"a": whole, "b": whole[1:, :2]}, {})
    with pytest.raises(ValueError, match="^op: b must be apart from c in memory; got "):
        require_apart("op", {"a": whole[:, 1], "b": whole[:, 0]}, {"c": whole[3, :1]})
    require_apart("op", {"a": whole[:, 1]}, {"b": whole[:, 0], "c": np.broadcast_to(whole[:, 0], (3, 4))})


def test_the_footprint_of_a_tensor_lies_where_the_tensor_does():
    tensor = torch.zeros(3, 4, dtype=torch.bfloat16)
    assert not overlaps_itself(footprint(tensor[:, ::2]))
    assert overlaps_itself(footprint(tensor[:1].expand(5, 4)))
    assert overlap(footprint(tensor[1:, :2]), footprint(tensor[:, 1]))
    assert not overlap(footprint(tensor[:, ::2]), footprint(tensor[:, 1::2]))
    assert footprint(tensor[:0]).size == 0
    assert overlap(footprint(tensor), tensor.view(torch.int16).numpy())
