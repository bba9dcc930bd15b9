"""Rows of tokens that lie one after the other, each with a state that a call updates: what recurrent operators share.

A row's state is one of an array's. A call reads the one and writes the same or another, so that the old one can be kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from decodestep._base import arrays, devices
from decodestep._base.aliasing import footprint, require_apart
from decodestep._base.arrays import Array
from decodestep._base.checks import Phrase, describe_range, refuse, require, require_shape, require_within


@dataclass(frozen=True)
class StateRows:
    """Which tokens are a row's, and which states it has, checked.

    Attributes:
        starts: int64 (B + 1,), from 0; row b has the tokens from starts[b] to starts[b + 1] - 1.
        read, written: int64 (B,), the numbers of the states that rows begin with and leave behind.
    """

    starts: np.ndarray
    read: np.ndarray
    written: np.ndarray

    def __iter__(self) -> Iterator[tuple[slice, int, int]]:
        """For each row: its tokens, as a slice, the state it reads and the one it writes."""
        bounds = self.starts.tolist()
        return zip(map(slice, bounds, bounds[1:]), self.read.tolist(), self.written.tolist(), strict=True)


def look(op: str, given: Mapping[str, Any], optional: Collection[str], backend: str) -> dict[str, Any]:
    """NumPy views of the arguments, or their outlines where Triton serves the call; None for optional ones that are missing.

    given: by name; the first decides where the call runs. It may have float64 only outside of Triton.
    """
    first = next(iter(given.values()))
    on_device = devices.goes_to_triton(backend, first)
    if on_device:
        has_double = arrays.is_torch(first) and str(first.dtype) == "torch.float64"
        devices.choose_triton(op, backend, first, "has no float64" if has_double else None)
    return {
        name: None
        if value is None and name in optional
        else devices.outline(op, name, value, first.device)
        if on_device
        else arrays.view(op, name, value)
        for name, value in given.items()
    }


def state_rows(op: str, tokens: int, states: int, *, lengths: object, slots: object, into: object) -> StateRows:
    """The rows of a call with so many tokens and states.

    lengths: of the rows, or None for equal ones. slots: the states that they read, or None for all in order. into: those that
    they write, or None for the same.
    """
    lengths, slots, into = map(devices.to_host, (lengths, slots, into))
    read = np.arange(states) if slots is None else arrays.integers(op, "slots", slots, rank=1)
    require_within(op, "slots", read, states)
    written = read
    if into is not None:
        written = arrays.integers(op, "into", into, rank=1)
        require_shape(op, "into", written, read.shape)
        require_within(op, "into", written, states)
        owners = dict(zip(written.tolist(), range(len(written)), strict=True))
        if any(owners.get(slot, row) != row for row, slot in enumerate(read.tolist())):
            refuse(op, "into", "states that no other row reads", written.tolist())
    if len(set(written.tolist())) != len(written):
        refuse(op, "slots" if into is None else "into", "a state for each row", written.tolist())
    return StateRows(_starts(op, tokens, len(read), lengths), read, written)


def _starts(op: str, tokens: int, rows: int, lengths: object) -> np.ndarray:
    starts = np.zeros(rows + 1, np.int64)
    if lengths is None:
        if tokens % rows if rows else tokens:
            refuse(op, "lengths", f"given where {rows} rows cannot have equal shares of {tokens} tokens", None)
        starts[:] = np.arange(rows + 1) * (tokens // max(rows, 1))
        return starts
    of_rows = arrays.integers(op, "lengths", lengths, rank=1)
    require_shape(op, "lengths", of_rows, (rows,))
    if rows and (of_rows.min() < 0 or of_rows.max() > tokens):
        refuse(op, "lengths", f"in [0, {tokens}]", describe_range(of_rows))
    require(int(of_rows.sum()) == tokens, op, "lengths", f"numbers whose sum is {tokens}", Phrase(f"a sum of {of_rows.sum()}"))
    np.cumsum(of_rows, out=starts[1:])
    return starts


def require_state(op: str, state: Array, shape: tuple[int, ...], dtype: object) -> None:
    """`state` is one that can be updated: of this dtype and shape, but for its number of states, and writeable."""
    if state.dtype != dtype or state.ndim != len(shape) + 1 or state.shape[1:] != shape:
        refuse(op, "state", f"{dtype} of shape ({', '.join(map(str, ('S', *shape)))})", state)
    if not state.flags.writeable:
        refuse(op, "state", "writeable", Phrase("a read-only array"))


def require_state_apart(op: str, given: Mapping[str, Any], seen: Mapping[str, Any]) -> None:
    """No element of `state` lies in the memory of another, nor of the other arguments. given, seen: as in `look`."""
    places = {name: _place(given[name], view) for name, view in seen.items() if view is not None}
    require_apart(op, {"state": places.pop("state")}, places)


def _place(given: object, view: np.ndarray) -> np.ndarray:
    return footprint(given) if arrays.is_torch(given) else view


def in_rows(array: np.ndarray) -> np.ndarray:
    """The array itself where its last axis has no gaps, as kernels take it, or a copy."""
    whole = array.shape[-1] <= 1 or array.strides[-1] == array.itemsize
    return array if whole and array.flags.aligned else np.array(array, order="C")


def put_back(held: np.ndarray, state: np.ndarray, rows: StateRows) -> None:
    """What a kernel wrote to `in_rows(state)`, in its place."""
    if held is not state:
        state[rows.written] = held[rows.written]
