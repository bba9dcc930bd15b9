"""Array kinds: NumPy and torch in, the same kind out, without a copy.

Kernels see NumPy views alone. A torch tensor on the CPU shares its memory with the view that it is given here; torch is
looked up among the modules already loaded and never imported.
"""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np

from decodestep._base.checks import refuse

# torch keeps these under its own names; NumPy knows them through ml_dtypes. The integer type carries the bits across.
_CARRIED = {
    "bfloat16": (ml_dtypes.bfloat16, "int16"),
    "float8_e4m3fn": (ml_dtypes.float8_e4m3fn, "uint8"),
    "float8_e4m3fnuz": (ml_dtypes.float8_e4m3fnuz, "uint8"),
    "float8_e5m2": (ml_dtypes.float8_e5m2, "uint8"),
    "float8_e5m2fnuz": (ml_dtypes.float8_e5m2fnuz, "uint8"),
    "float8_e8m0fnu": (ml_dtypes.float8_e8m0fnu, "uint8"),
}
# A dtype is looked up in 30 ns, its name takes 1500 to make.
_NAMES = {np.dtype(dtype): (name, carrier) for name, (dtype, carrier) in _CARRIED.items()}
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or is_torch(value)


def view(op: str, arg: str, value: Any) -> np.ndarray:
    """The NumPy view of a NumPy array or of a torch tensor on the CPU; writing to it writes to the caller's memory."""
    if isinstance(value, np.ndarray):
        return value if type(value) is np.ndarray else np.asarray(value)
    if not is_torch(value):
        refuse(op, arg, "a NumPy array or a torch tensor", type(value).__name__)
    if not value.is_cpu:
        refuse(op, arg, "on the CPU for this backend", f"a tensor on {value.device}")
    tensor = value.detach() if value.requires_grad else value
    dtype, carrier = _CARRIED.get(str(tensor.dtype)[len("torch.") :], (None, ""))
    try:
        array: np.ndarray = (tensor if dtype is None else tensor.view(getattr(sys.modules["torch"], carrier))).numpy()
    except (RuntimeError, TypeError):  # sparse or quantised, lazily conjugated, of a dtype that NumPy lacks
        refuse(op, arg, "a tensor that NumPy can view", value)
    return array if dtype is None else array.view(dtype)


def as_array(op: str, arg: str, value: Any) -> np.ndarray:
    """The view of an array, or the new array that a list or a number makes."""
    if is_array(value):
        return view(op, arg, value)
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError):
        refuse(op, arg, "an array or a list of numbers", value)


def packed(array: np.ndarray) -> np.ndarray:
    """The array for a kernel that reads it in C order: itself, or a copy where it has gaps or is not aligned."""
    return array if array.flags.c_contiguous and array.flags.aligned else array.copy()


def packed_rows(matrix: np.ndarray) -> np.ndarray:
    """As `packed`, but rows may lie apart: a slice of a matrix, or two halves of one product, need no copy."""
    together = matrix.shape[1] <= 1 or matrix.strides[1] == matrix.itemsize
    return matrix if together and matrix.flags.aligned else matrix.copy()


def optional_view(op: str, arg: str, value: Any) -> np.ndarray | None:
    return None if value is None else view(op, arg, value)


def bits(array: np.ndarray) -> np.ndarray:
    """A bfloat16 array, which the core does not know by name, as the integers of its bits; any other as it is."""
    return array.view(np.uint16) if array.dtype == BFLOAT16 else array


def like(template: Any, array: np.ndarray) -> Any:
    """`array` in the kind of `template`: the array itself beside NumPy, a tensor on the same memory beside torch."""
    if not is_torch(template):
        return array
    torch = sys.modules["torch"]
    carried = _NAMES.get(array.dtype)
    if carried is None:
        return torch.from_numpy(array)
    name, carrier = carried
    return torch.from_numpy(array.view(carrier)).view(getattr(torch, name))


def share_memory(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays may overlap, by the bounds of their memory: cheap, and wrong on the careful side only."""
    return np.may_share_memory(a, b)
