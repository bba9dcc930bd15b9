"""A tensor's values as float32, whatever its type."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import ml_dtypes
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from decodestep.errors import ModelError
from decodestep.files.gguf_file import Tensor
from decodestep.files.safetensors_file import SafeTensor
from decodestep.weights.packed import DENSE_FORMATS

FLOAT8, TILE = "F8_E4M3", 128  # its values have a factor for each square of 128 rows and columns
_FLOAT8_VALUES = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
_DENSE = frozenset(format_.name for format_ in DENSE_FORMATS)
_PIECE = 1 << 20  # values


def type_name(tensor: Tensor | SafeTensor) -> str:
    return tensor.type if isinstance(tensor, SafeTensor) else tensor.type.name


def read_float32(tensor: Tensor | SafeTensor) -> np.ndarray:
    """The values in the tensor's shape, read now; a scale that is not finite gives values that are not. Not for float8."""
    if isinstance(tensor, SafeTensor):
        return tensor.float32()
    if tensor.type == GGMLQuantizationType.F32:
        return tensor.read().view(np.float32).reshape(tensor.shape)
    return _widened(tensor.read().reshape(math.prod(tensor.shape[:-1]), -1), tensor.type).reshape(tensor.shape)


def read_pieces(tensor: Tensor | SafeTensor, scale: np.ndarray | None = None) -> Iterator[np.ndarray]:
    """The rows of a tensor of two or more axes, (any number, K), from the first to the last, about a million values at a time.

    scale: the factors of a float8 tensor. Raises ModelError for values of float8 or quantised types that are not finite.
    """
    inputs = tensor.shape[-1]
    if type_name(tensor) in _DENSE:
        yield read_float32(tensor).reshape(-1, inputs)
        return
    rows = tensor.read().reshape(math.prod(tensor.shape[:-1]), -1)
    step = TILE * -(-_PIECE // (TILE * inputs))
    for first in range(0, len(rows), step):
        part = rows[first : first + step]
        if scale is not None:
            values, fault = _scaled(_FLOAT8_VALUES[part], scale[first // TILE :]), "values that are not finite"
        else:
            assert isinstance(tensor, Tensor)
            values, fault = _widened(part, tensor.type), "a scale that is not finite"
        if not np.isfinite(values).all():
            raise ModelError(f"{tensor.path}: tensor {tensor.name} has {fault}")
        yield values


def _scaled(values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The values times the factors of their squares, in place. scale: has a row for every TILE of theirs, or more."""
    rows, inputs = values.shape
    with np.errstate(over="ignore", invalid="ignore"):
        for first, line in zip(range(0, rows, TILE), scale, strict=False):
            values[first : first + TILE] *= np.repeat(line, TILE)[:inputs]
    return values


def _widened(rows: np.ndarray, type_: GGMLQuantizationType) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore"):  # a scale that is not finite
        values = dequantize(rows, type_) if type_ != GGMLQuantizationType.F16 else rows.view(np.float16)
    return np.ascontiguousarray(values, np.float32)


@cache
def can_be_read(type_: GGMLQuantizationType) -> bool:
    """Whether the gguf package can widen a type."""
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[type_][1]), np.uint8), type_)
    except NotImplementedError:
        return False
    return True
