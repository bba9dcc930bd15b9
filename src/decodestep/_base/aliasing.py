"""Whether elements of arrays lie in the same memory, for arrays that an operator writes to.

The answers are exact for any strides: NumPy solves the equation that two equal addresses make. Its search is exponential in the
number of axes, so it has a limit, which takes six or more axes of unrelated strides to reach; such arrays count as overlapping.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from decodestep._base.checks import Phrase, describe, refuse

if TYPE_CHECKING:
    import torch

_MOST_WORK: Any = 10**5  # candidates of NumPy's search: some milliseconds; its stubs have no numbers but 0 and -1


def overlap(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether an element of one lies in the memory of an element of the other."""
    try:
        return np.shares_memory(a, b, _MOST_WORK)
    except np.exceptions.TooHardError:
        return True


def overlaps_itself(array: np.ndarray) -> bool:
    """Whether two elements lie in the same memory, as in a broadcast array."""
    if array.flags.c_contiguous or array.size < 2:
        return False
    # Two elements differ on some first axis. Moving both along an axis moves both addresses, so that the one may be taken to be
    # at 0 on that axis, and both at 0 on the axes before.
    for axis in range(array.ndim):
        if array.shape[axis] > 1:
            before = (slice(0, 1),) * axis
            if overlap(array[(*before, slice(0, 1))], array[(*before, slice(1, None))]):
                return True
    return False


def require_apart(op: str, written: Mapping[str, np.ndarray], read: Mapping[str, np.ndarray]) -> None:
    """Every element that is written to has memory of its own, in which none that is read lies either."""
    for name, array in written.items():
        if overlaps_itself(array):
            refuse(op, name, "of elements that do not overlap in memory", strided(array))
    names = [*written, *read]
    others = [*written.values(), *read.values()]
    for i, (name, array) in enumerate(written.items()):
        for other, value in zip(names[i + 1 :], others[i + 1 :], strict=True):
            if overlap(array, value):
                refuse(op, name, f"apart from {other} in memory", Phrase("arrays that overlap"))


def strided(array: np.ndarray) -> Phrase:
    """What an error says of an array whose strides are wrong."""
    return Phrase(f"{describe(array)} of strides {array.strides}")


def footprint(tensor: torch.Tensor) -> np.ndarray:
    """An array that lies where a tensor on any device does, to be compared and never read: NumPy cannot reach that memory."""
    size = tensor.element_size()
    place = {
        "version": 3,
        "data": (tensor.data_ptr() or size, False),  # NumPy 1.26 takes the 0 of an empty tensor as no address
        "shape": tuple(tensor.shape),
        "strides": tuple(stride * size for stride in tensor.stride()),
        "typestr": f"|V{size}",
    }
    return np.asarray(SimpleNamespace(__array_interface__=place))
