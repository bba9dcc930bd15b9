"""Array kinds: NumPy arrays and torch tensors in, the same kind out, without a copy.

Kernels take NumPy arrays. A torch tensor on the CPU is passed to them as a NumPy view of its memory. torch is looked up among
the modules that are already loaded and never imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, TypeVar

import ml_dtypes
import numpy as np

from decodestep._base.checks import Phrase, refuse, require

if TYPE_CHECKING:
    import torch

Array: TypeAlias = "np.ndarray | torch.Tensor"
# Integers that need no particular dtype: positions, lengths, ids.
Integers: TypeAlias = "np.ndarray | torch.Tensor | Sequence[int]"
# A row of them for each sequence: its blocks or pages.
IntegerTable: TypeAlias = "np.ndarray | torch.Tensor | Sequence[Sequence[int]]"
# One token id or several.
TokenIds: TypeAlias = "int | Sequence[int] | np.ndarray | torch.Tensor"
# For functions that return the kind of array they are given.
ArrayT = TypeVar("ArrayT", bound="np.ndarray | torch.Tensor")

# Keyed by torch's name of a dtype that NumPy has only through ml_dtypes: that dtype, and the integer dtype carrying its bits.
_CARRIED = {
    "bfloat16": (ml_dtypes.bfloat16, "int16"),
    "float8_e4m3fn": (ml_dtypes.float8_e4m3fn, "uint8"),
    "float8_e4m3fnuz": (ml_dtypes.float8_e4m3fnuz, "uint8"),
    "float8_e5m2": (ml_dtypes.float8_e5m2, "uint8"),
    "float8_e5m2fnuz": (ml_dtypes.float8_e5m2fnuz, "uint8"),
    "float8_e8m0fnu": (ml_dtypes.float8_e8m0fnu, "uint8"),
}
# Keyed by dtype, because a lookup takes 30 ns and forming its name 1500.
_NAMES = {np.dtype(dtype): (name, carrier) for name, (dtype, carrier) in _CARRIED.items()}
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
EXPONENT8 = np.dtype(ml_dtypes.float8_e8m0fnu)  # powers of two, the scales of blocks of FLOAT8
# The integers as which the core takes the bits of a dtype that it has no array of.
_BITS = {BFLOAT16: np.uint16, FLOAT8: np.uint8, EXPONENT8: np.uint8}


def is_torch(value: object) -> TypeGuard[torch.Tensor]:
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)  # not there yet while another thread imports torch
    return tensor is not None and isinstance(value, tensor)


def is_array(value: object) -> TypeGuard[Array]:
    return isinstance(value, np.ndarray) or is_torch(value)


def view(op: str, arg: str, value: object) -> np.ndarray:
    """The NumPy view of a NumPy array or of a torch tensor on the CPU; writing to it writes to the caller's memory."""
    if isinstance(value, np.ndarray):
        return value if type(value) is np.ndarray else np.asarray(value)
    if not is_torch(value):
        refuse(op, arg, "a NumPy array or a torch tensor", Phrase(type(value).__name__))
    if not value.is_cpu:
        refuse(op, arg, "on the CPU for this backend", Phrase(f"a tensor on {value.device}"))
    tensor = value.detach() if value.requires_grad else value
    dtype, carrier = _CARRIED.get(str(tensor.dtype)[len("torch.") :], (None, ""))
    try:
        array: np.ndarray = (tensor if dtype is None else tensor.view(getattr(sys.modules["torch"], carrier))).numpy()
    except (RuntimeError, TypeError):  # sparse or quantised, lazily conjugated, of a dtype that NumPy lacks
        refuse(op, arg, "a tensor that NumPy can view", value)
    return array if dtype is None else array.view(dtype)


def optional_view(op: str, arg: str, value: object) -> np.ndarray | None:
    return None if value is None else view(op, arg, value)


def as_array(op: str, arg: str, value: object) -> np.ndarray:
    """The view of an array; a list or a number as a new array."""
    if is_array(value):
        return view(op, arg, value)
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError):
        refuse(op, arg, "an array or a list of numbers", value)


def integers(op: str, arg: str, value: object, *, rank: int | None = None) -> np.ndarray:
    """An array or list of integers as a new int64 array in C order; with `rank`, refused unless it has that many axes.

    An empty list, which NumPy makes float64, counts as integers.
    """
    array = as_array(op, arg, value)
    rule = "integers" if rank is None else f"integers of rank {rank}"
    require((array.dtype.kind in "iu" or array.size == 0) and rank in (None, array.ndim), op, arg, rule, array)
    if array.dtype == np.uint64:
        require(array.max(initial=0) < 2**63, op, arg, "integers below 2^63", int(array.max(initial=0)))
    return np.array(array, np.int64, order="C")


def token_ids(op: str, arg: str, value: TokenIds) -> list[int]:
    """An id, a sequence or an array of ids as a flat list of Python numbers; those that are no ids are left to the caller."""
    plain = value.tolist() if hasattr(value, "tolist") else value
    flat = np.asarray(list(plain) if isinstance(plain, Iterable) and not isinstance(plain, str) else plain).reshape(-1)
    require(flat.size == 0 or flat.dtype.kind in "biuf", op, arg, "a token id or a list of token ids", value)
    ids: list[int] = flat.tolist()
    return ids


def some_token_ids(op: str, arg: str, value: TokenIds) -> list[int]:
    """`token_ids`, of which at least one is there and all are integers >= 0."""
    ids = token_ids(op, arg, value)
    require(bool(ids) and all(isinstance(i, int) and i >= 0 for i in ids), op, arg, "non-negative integers", value)
    return ids


def contiguous(array: np.ndarray) -> np.ndarray:
    """The array for a kernel that reads it in C order: itself, or a copy if it has gaps or is not aligned."""
    return array if array.flags.c_contiguous and array.flags.aligned else array.copy()


def contiguous_rows(matrix: np.ndarray) -> np.ndarray:
    """As `contiguous`, but only each row must be contiguous: a slice of a matrix's rows or columns is not copied."""
    without_gaps = matrix.shape[1] <= 1 or matrix.strides[1] == matrix.itemsize
    return matrix if without_gaps and matrix.flags.aligned else matrix.copy()


def bits(array: np.ndarray) -> np.ndarray:
    """A bfloat16 array as uint16 and one of eight-bit floats as uint8, as the core expects them; any other array unchanged."""
    carrier = _BITS.get(array.dtype)
    return array if carrier is None else array.view(carrier)


def widen(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """`array` in a wider float dtype, exactly; itself if it has that dtype."""
    return array.astype(dtype, copy=False)


def like(template: object, array: np.ndarray) -> Any:
    """`array` in the kind of `template`: itself if that is a NumPy array, a tensor sharing its memory if that is a tensor."""
    if not is_torch(template):
        return array
    torch = sys.modules["torch"]
    carried = _NAMES.get(array.dtype)
    if carried is None:
        tensor = torch.from_numpy(array)
    else:
        name, carrier = carried
        tensor = torch.from_numpy(array.view(carrier)).view(getattr(torch, name))
    # Strides are zeros in an empty array of NumPy, and never in a tensor that compiled code expects.
    return tensor if array.size else tensor.new_empty(array.shape)
