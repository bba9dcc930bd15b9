"""The arguments of the samplers as arrays of one value per row, in the dtypes of the specification.

A message is put together only when it is needed: for a small vocabulary the checks take as long as the kernel.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from decodestep._base import arrays
from decodestep._base.arrays import Array
from decodestep._base.checks import (
    Phrase,
    is_finite,
    is_int,
    is_real,
    refuse,
    require,
    require_choice,
    require_dtype,
    require_shape,
)
from decodestep.ops.top_k_top_p_sample.rules import GivenNoise, SeededNoise

HALVES = (np.float16, ml_dtypes.bfloat16)
FLOATS = (*HALVES, np.float32)
LARGEST_VOCABULARY = 2**20
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


def logits_view(op: str, logits: Array, dtypes: tuple[npt.DTypeLike, ...]) -> np.ndarray:
    rows = arrays.view(op, "logits", logits)
    require_dtype(op, "logits", rows, dtypes)
    require(rows.ndim == 2 and rows.size > 0, op, "logits", "a non-empty (batch, vocabulary) matrix", rows)
    if rows.shape[1] > LARGEST_VOCABULARY:
        refuse(op, "logits", f"at most {LARGEST_VOCABULARY} wide", rows)
    return rows


def int32_column(op: str, arg: str, value: object, batch: int) -> np.ndarray:
    if arrays.is_array(value):
        return _array_column(op, arg, value, batch, np.int32)
    values = _values(op, arg, value, batch)
    for each in values:
        require(is_int(each) and -(2**31) <= each < 2**31, op, arg, "an int32, one or one per row", each)
    return np.array(values, np.int32)


def float_column(op: str, arg: str, value: object, batch: int, dtype: np.dtype) -> np.ndarray:
    """Python numbers are rounded to the logits' dtype, as a caller of the device operator would have rounded them."""
    if arrays.is_array(value):
        return _array_column(op, arg, value, batch, dtype)
    values = _values(op, arg, value, batch)
    for each in values:
        require(is_real(each), op, arg, "a number, one or one per row", each)
    with np.errstate(over="ignore"):  # what the dtype cannot hold becomes infinity, which is legal
        try:
            return np.array(values, np.float64).astype(dtype)
        except OverflowError:
            refuse(op, arg, "a number that a float64 can hold", value)


def check_post_sample(op: str, post_sample: object, generator: object, q: object, seed: object) -> None:
    """The arguments of npu_top_k_top_p_sample that say how a token is drawn; of the three ways one is not specified."""
    unspecified = isinstance(post_sample, str) and post_sample == "multiNomial"
    require(not unspecified, op, "post_sample", "'qSample' or 'None': the draw of 'multiNomial' is not specified", post_sample)
    require_choice(op, "post_sample", post_sample, ("qSample", "None"))
    require(generator is None, op, "generator", "None: what is drawn from a generator is not specified", generator)
    for arg, value in (("q", q), ("seed", seed)):
        require(value is None or post_sample == "qSample", op, arg, "None where post_sample is 'None'", value)


def noise(op: str, q: Array | None, seed: object, position: object, shape: tuple[int, int]) -> GivenNoise | SeededNoise | None:
    """The noise of the exponential race: the given q, that of the seeds, or None to take the largest value."""
    if q is not None:
        require(seed is None and position is None, op, "seed", "None where q is given", Phrase("a seed or a position"))
        given = arrays.view(op, "q", q)
        require_dtype(op, "q", given, (np.float32,))
        require_shape(op, "q", given, shape)
        return GivenNoise(given)
    require((seed is None) == (position is None), op, "seed", "given together with position", Phrase("one without the other"))
    if seed is None:
        return None
    return SeededNoise(
        _unsigned_column(op, "seed", seed, shape[0], 64), _unsigned_column(op, "position", position, shape[0], 32)
    )


def flag(op: str, arg: str, value: object) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        refuse(op, arg, "True or False", value)
    return bool(value)


def integer(op: str, arg: str, value: object, low: int, high: int) -> int:
    if not (is_int(value) and low <= value <= high):
        refuse(op, arg, f"an integer in [{low}, {high}]", value)
    return int(value)


def epsilon(op: str, value: object) -> float:
    if not (is_finite(value) and 0 <= float(value) <= _LARGEST_FLOAT32):  # a float16 does not hold this bound
        refuse(op, "eps", "a finite float32 number >= 0", value)
    return float(value)


def _unsigned_column(op: str, arg: str, value: object, batch: int, bits: int) -> np.ndarray:
    rule = f"an integer in [0, 2^{bits}), one or one per row"
    if arrays.is_array(value):
        column = arrays.view(op, arg, value)
        require(column.dtype.kind in "iu", op, arg, rule, column)
        scalar = column.ndim == 0
        values = [column.item()] * batch if scalar else _array_column(op, arg, value, batch, column.dtype).tolist()
    else:
        values = _values(op, arg, value, batch)
    for each in values:
        require(is_int(each) and 0 <= each < 2**bits, op, arg, rule, each)
    return np.array(values, np.uint64)


def _array_column(op: str, arg: str, value: object, batch: int, dtype: npt.DTypeLike) -> np.ndarray:
    column = arrays.view(op, arg, value)
    require_dtype(op, arg, column, (dtype,))
    if column.shape not in ((batch,), (batch, 1)):
        refuse(op, arg, f"of shape {batch} or {batch}x1", column)
    return column.reshape(batch)


def _values(op: str, arg: str, value: object, batch: int) -> list[Any]:
    """One Python value per row: of a scalar, or of a list with one item per row, a value or a list of one value."""
    if isinstance(value, (list, tuple)):
        values = [v[0] if isinstance(v, (list, tuple)) and len(v) == 1 else v for v in value]
        require(len(values) == batch, op, arg, f"one value or {batch}, one per row", Phrase(f"{len(values)} values"))
    else:
        values = [value] * batch
    return [v.item() if isinstance(v, np.generic) else v for v in values]
