"""The part of onnxruntime's C interface that custom operators need, through ctypes.

The indices of functions in OrtApi and the fields of OrtCustomOp are those of version 18 of the interface (onnxruntime 1.18);
later versions only append to them.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any

import ml_dtypes
import numpy as np

from decodestep._base.checks import Words, refuse
from decodestep.errors import RequestError

VERSION = 18
ANY, REQUIRED, OPTIONAL = 0, 0, 1
_FAIL, _INVALID_ARGUMENT = 1, 2

# Element types, by ONNX's numbers.
DTYPES = {
    1: np.float32,
    2: np.uint8,
    3: np.int8,
    4: np.uint16,
    5: np.int16,
    6: np.int32,
    7: np.int64,
    9: np.bool_,
    10: np.float16,
    11: np.float64,
    12: np.uint32,
    13: np.uint64,
    14: np.complex64,
    15: np.complex128,
    16: ml_dtypes.bfloat16,
    17: ml_dtypes.float8_e4m3fn,
    18: ml_dtypes.float8_e4m3fnuz,
    19: ml_dtypes.float8_e5m2,
    20: ml_dtypes.float8_e5m2fnuz,
}
NUMBERS = {np.dtype(dtype).name: number for number, dtype in DTYPES.items()}

_FUNCTIONS: dict[str, tuple[int, tuple[Any, ...]]] = {
    "CreateCustomOpDomain": (26, (c_char_p, POINTER(c_void_p))),
    "CustomOpDomain_Add": (27, (c_void_p, c_void_p)),
    "AddCustomOpDomain": (28, (c_void_p, c_void_p)),
    "GetTensorMutableData": (51, (c_void_p, POINTER(c_void_p))),
    "GetTensorElementType": (60, (c_void_p, POINTER(c_int))),
    "GetDimensionsCount": (61, (c_void_p, POINTER(c_size_t))),
    "GetDimensions": (62, (c_void_p, POINTER(c_int64), c_size_t)),
    "GetTensorTypeAndShape": (65, (c_void_p, POINTER(c_void_p))),
    "KernelInfoGetAttribute_float": (85, (c_void_p, c_char_p, POINTER(c_float))),
    "KernelInfoGetAttribute_int64": (86, (c_void_p, c_char_p, POINTER(c_int64))),
    "KernelInfoGetAttribute_string": (87, (c_void_p, c_char_p, c_char_p, POINTER(c_size_t))),
    "KernelContext_GetInputCount": (88, (c_void_p, POINTER(c_size_t))),
    "KernelContext_GetOutputCount": (89, (c_void_p, POINTER(c_size_t))),
    "KernelContext_GetInput": (90, (c_void_p, c_size_t, POINTER(c_void_p))),
    "KernelContext_GetOutput": (91, (c_void_p, c_size_t, POINTER(c_int64), c_size_t, POINTER(c_void_p))),
}

_Number, _Index = ctypes.CFUNCTYPE(c_size_t, c_void_p), ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t)
_Name, _Choice = ctypes.CFUNCTYPE(c_void_p, c_void_p), ctypes.CFUNCTYPE(c_int, c_void_p)
Registrar = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p)


class CustomOp(ctypes.Structure):
    """OrtCustomOp. onnxruntime keeps its address for the life of the process, so it must never be freed."""

    _fields_ = [
        ("version", c_uint32),
        ("CreateKernel", c_void_p),
        ("GetName", _Name),
        ("GetExecutionProviderType", _Name),
        ("GetInputType", _Index),
        ("GetInputTypeCount", _Number),
        ("GetOutputType", _Index),
        ("GetOutputTypeCount", _Number),
        ("KernelCompute", c_void_p),
        ("KernelDestroy", c_void_p),
        ("GetInputCharacteristic", _Index),
        ("GetOutputCharacteristic", _Index),
        ("GetInputMemoryType", _Index),
        ("GetVariadicInputMinArity", _Choice),
        ("GetVariadicInputHomogeneity", _Choice),
        ("GetVariadicOutputMinArity", _Choice),
        ("GetVariadicOutputHomogeneity", _Choice),
        ("CreateKernelV2", ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_void_p))),
        ("KernelComputeV2", ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p)),
        ("InferOutputShapeFn", c_void_p),
        ("GetStartVersion", _Choice),
        ("GetEndVersion", _Choice),
        ("GetMayInplace", c_void_p),
        ("ReleaseMayInplace", c_void_p),
        ("GetAliasMap", c_void_p),
        ("ReleaseAliasMap", c_void_p),
    ]


class Api:
    """OrtApi, from the address of an OrtApiBase. A function that fails raises ValueError."""

    def __init__(self, base: int) -> None:
        get = ctypes.CFUNCTYPE(c_void_p, c_uint32)(ctypes.cast(base, POINTER(c_void_p))[0])
        table = get(VERSION)
        if not table:
            raise ValueError(f"onnxruntime: version {VERSION} of its interface is missing")
        self._table = ctypes.cast(table, POINTER(c_void_p))
        self._create_status = ctypes.CFUNCTYPE(c_void_p, c_int, c_char_p)(self._table[0])
        self._message = ctypes.CFUNCTYPE(c_char_p, c_void_p)(self._table[2])
        self._release_status = ctypes.CFUNCTYPE(None, c_void_p)(self._table[93])
        self.release_type = ctypes.CFUNCTYPE(None, c_void_p)(self._table[99])
        self._functions = {
            name: ctypes.CFUNCTYPE(c_void_p, *arguments)(self._table[place]) for name, (place, arguments) in _FUNCTIONS.items()
        }

    def __call__(self, name: str, *arguments: object) -> None:
        """Calls a function that returns a status."""
        status = self._functions[name](*arguments)
        if status:
            message = self._message(status).decode(errors="replace")
            self._release_status(status)
            raise ValueError(message)

    def get(self, name: str, kind: Any, *arguments: Any) -> Any:
        """The value that a function writes to its last argument."""
        result = kind()
        self(name, *arguments, ctypes.byref(result))
        return result.value

    def status(self, error: BaseException) -> int:
        """A status with the error's message, for onnxruntime to raise."""
        code = _INVALID_ARGUMENT if isinstance(error, ValueError) else _FAIL
        return int(self._create_status(code, f"{type(error).__name__}: {error}".replace("\0", "").encode()))

    def array(self, value: int) -> np.ndarray:
        """A view of a tensor's elements, valid as long as the tensor."""
        info = self.get("GetTensorTypeAndShape", c_void_p, value)
        try:
            number = self.get("GetTensorElementType", c_int, info)
            rank = self.get("GetDimensionsCount", c_size_t, info)
            dimensions = (c_int64 * rank)()
            self("GetDimensions", info, dimensions, rank)
        finally:
            self.release_type(info)
        if number not in DTYPES:
            refuse("onnxruntime", "a tensor", "of a type that NumPy has", Words(f"ONNX's type {number}"))
        dtype, shape = np.dtype(DTYPES[number]), tuple(dimensions)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size == 0:
            return np.empty(shape, dtype)
        memory = (ctypes.c_uint8 * size).from_address(self.get("GetTensorMutableData", c_void_p, value))
        return np.frombuffer(memory, np.uint8).view(dtype).reshape(shape)

    def attribute(self, info: int, name: str, default: float | int | str) -> float | int | str:
        """An attribute of a node, or its default if the node does not have it. Raises ValueError for another type."""
        key = name.encode()
        try:
            if isinstance(default, float):
                return float(self.get("KernelInfoGetAttribute_float", c_float, info, key))
            if isinstance(default, int):
                return int(self.get("KernelInfoGetAttribute_int64", c_int64, info, key))
            size = c_size_t(0)
            self("KernelInfoGetAttribute_string", info, key, None, ctypes.byref(size))
            text = ctypes.create_string_buffer(size.value)
            self("KernelInfoGetAttribute_string", info, key, text, ctypes.byref(size))
            return text.raw[: size.value - 1].decode()  # without the NUL at its end; others are characters
        except ValueError as error:
            if "No attribute" not in str(error):
                raise RequestError("decodestep", name, f"a {type(default).__name__}", f"another: {error}") from None
            return default
