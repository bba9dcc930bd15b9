"""NumPy arrays of tensors' memory for the length of a call.

`Tensor.numpy` forbids for ever to resize the tensor's storage, as FSDP does, because its array may be kept. These may not be.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from decodestep._base.checks import Phrase, refuse

# The types of the array interface, in which NumPy has no bfloat16.
_TYPES = {torch.float32: "<f4", torch.bfloat16: "<u2", torch.int64: "<i8", torch.bool: "|b1"}


class _Memory:
    """A tensor's memory in NumPy's array interface. An array of it holds the storage: not the tensor, which may get another."""

    def __init__(self, tensor: Tensor, typestr: str, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> None:
        storage, first = tensor.untyped_storage(), tensor.data_ptr()
        end = first + (tensor.nbytes if strides is None else _extent(tensor))
        if end > storage.data_ptr() + storage.nbytes():
            refuse(
                "accelerate", "tensors", "within their storage", Phrase(f"{tuple(tensor.shape)} in {storage.nbytes()} bytes")
            )
        address = first or tensor.itemsize  # NumPy 1.26 takes the 0 of an empty tensor as no address
        interface = {"version": 3, "typestr": typestr, "data": (address, False), "shape": shape}
        if strides is not None:
            interface["strides"] = strides
        self.storage, self.__array_interface__ = storage, interface


def borrow(tensor: Tensor) -> np.ndarray:
    """The array of a plain CPU tensor of a dtype in `_TYPES` that is not lazily negated."""
    strides = None if tensor.is_contiguous() else tuple([step * tensor.itemsize for step in tensor.stride()])
    array = np.asarray(_Memory(tensor, _TYPES[tensor.dtype], tensor.shape, strides))
    return array.view(ml_dtypes.bfloat16) if tensor.dtype == torch.bfloat16 else array


def borrow_rows(matrix: Tensor) -> np.ndarray:
    """The bytes of each row of such a matrix with contiguous rows, as uint8."""
    rows, columns = matrix.shape
    size = matrix.itemsize
    strides = None if matrix.is_contiguous() else (matrix.stride(0) * size, 1)
    return np.asarray(_Memory(matrix, "|u1", (rows, columns * size), strides))


def _extent(tensor: Tensor) -> int:
    """The bytes from the first item of a tensor that is not empty to the end of its last."""
    steps = [(length - 1) * step for length, step in zip(tensor.shape, tensor.stride(), strict=True)]
    return (sum(steps) + 1) * tensor.itemsize
