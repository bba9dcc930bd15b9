"""Tensors on a GPU: which calls Triton serves, and how their arguments are checked without reading their values.

Contracts are checked on NumPy arrays. A tensor on a device is represented by an `outline`, an array of its shape and dtype
without its values. Small index arrays whose values a contract limits are copied to the host; in any case kernels never write
outside their buffers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from decodestep._base import arrays
from decodestep._base.checks import Phrase, refuse
from decodestep._base.dispatch import choose
from decodestep._base.profiling import Result, run

if TYPE_CHECKING:
    import torch

_HOST_ONLY = "reads the CPU's memory alone"
_ALIGNED = 16  # bytes, which any element and the widest loads want; as many or more lie between arrays that are copied together


def goes_to_triton(backend: str, value: object) -> bool:
    """Whether Triton should serve a call with this tensor: it is on a GPU, or the backend is "triton"."""
    named = isinstance(backend, str) and backend == "triton"  # an array is compared item by item
    return named or (type(value) is not np.ndarray and arrays.is_torch(value) and value.is_cuda)


def choose_triton(op: str, backend: str, value: object, obstacle: str | None = None) -> None:
    """Raises ValueError unless Triton serves the call. obstacle: why this operator cannot, or None."""
    reason = obstacle or _missing(value)
    on_host = _HOST_ONLY if arrays.is_torch(value) and not value.is_cpu else None
    choose(op, backend, {"cpu": on_host, "triton": reason, "reference": on_host})


def _missing(value: object) -> str | None:
    if not arrays.is_torch(value) or not (value.is_cuda or (value.is_cpu and interpreted())):
        return "needs torch tensors on a GPU"
    return None if _has_triton() else "needs the package triton: pip install 'decodestep[gpu]'"


def detached(given: Iterable[Any]) -> list[Any]:
    """Tensors as kernels take them, which autograd does not see; None as it is."""
    return [None if tensor is None else tensor.detach() for tensor in given]


def run_there(op: str, device: torch.device, function: Callable[..., Result], *args: object) -> Result:
    """`run` of an operator's kernels on its tensors' device, which need not be the current one, where Triton launches them."""
    with sys.modules["torch"].cuda.device(device) if device.type == "cuda" else nullcontext():
        return run(op, "triton", function, *args)


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, which then take tensors on the CPU: for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def outline(op: str, arg: str, value: object, device: torch.device) -> np.ndarray:
    """An array of a tensor's shape and dtype, without its values; refused unless the tensor is on the device."""
    if not arrays.is_torch(value):
        refuse(op, arg, f"a tensor on {device}", Phrase(type(value).__name__) if arrays.is_array(value) else value)
    if value.device != device:
        refuse(op, arg, f"on {device}, as the other tensors", Phrase(f"a tensor on {value.device}"))
    dtype = _dtype_in_numpy(op, arg, value.dtype)
    return np.ndarray(tuple(value.shape), dtype, bytearray(dtype.itemsize), strides=(0,) * value.ndim)


@cache
def _dtype_in_numpy(op: str, arg: str, dtype: object) -> np.dtype:
    return arrays.view(op, arg, sys.modules["torch"].empty(1, dtype=dtype, device="cpu")).dtype


def optional_outline(op: str, arg: str, value: object, device: torch.device) -> np.ndarray | None:
    return None if value is None else outline(op, arg, value, device)


def to_host(value: object) -> Any:
    """A tensor's copy on the host; anything else unchanged."""
    return value.cpu() if arrays.is_torch(value) else value


def to_device(array: np.ndarray, device: torch.device) -> Any:
    """A copy of a NumPy array as a tensor on the device, for which the host does not wait."""
    tensor = arrays.like(sys.modules["torch"].empty(0), np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def to_device_together(given: Sequence[np.ndarray], device: torch.device) -> list[Any]:
    """As `to_device`, of several arrays by one copy."""
    ends = np.cumsum([-(-array.nbytes // _ALIGNED) * _ALIGNED + _ALIGNED for array in given]).tolist()
    whole = np.zeros(ends[-1], np.uint8)
    for array, begin in zip(given, [0, *ends], strict=False):
        whole[begin : begin + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    there, torch = to_device(whole, device), sys.modules["torch"]
    return [
        there[begin : begin + array.nbytes].view(torch.from_numpy(array[:0].reshape(-1)).dtype).view(array.shape)
        for array, begin in zip(given, [0, *ends], strict=False)
    ]
