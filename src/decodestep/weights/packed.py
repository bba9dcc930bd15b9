"""A weight in the layout of GGUF files: one row of K values for each output, in a dense or a block format."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import DTypeLike

from decodestep._base import arrays
from decodestep._base.arrays import BFLOAT16, Array
from decodestep._base.checks import Phrase, is_int, require
from decodestep.weights.blocks import BLOCKS


class Format(IntEnum):
    """The row formats that have a native kernel; the numbers are those of csrc/linear/formats.h."""

    F32 = 0
    F16 = 1
    BF16 = 2
    Q4_0 = 3
    Q4_1 = 4
    Q8_0 = 5
    Q4_K = 6
    Q5_K = 7
    Q6_K = 8
    Q5_0 = 9
    Q5_1 = 10
    IQ4_NL = 11
    IQ4_XS = 12
    MXFP4 = 13
    Q2_K = 14
    Q3_K = 15


_CLASS = "PackedWeight"
DENSE_DTYPES = {Format.F32: np.dtype(np.float32), Format.F16: np.dtype(np.float16), Format.BF16: BFLOAT16}
DENSE_FORMATS = frozenset(DENSE_DTYPES)


def require_inputs(op: str, format_: Format, inputs: int) -> None:
    """Refuses a K that is not of whole blocks of the format."""
    block = BLOCKS.get(format_.name)
    rule = f"{f'a multiple of {block.values}' if block else 'an integer >= 0'} in format {format_.name}"
    require(is_int(inputs) and inputs >= 0 and not (block and inputs % block.values), op, "inputs", rule, inputs)


def row_bytes(format_: Format, inputs: int) -> int:
    """The bytes of a row of `inputs` values, a multiple of the format's block."""
    block = BLOCKS.get(format_.name)
    return inputs // block.values * block.bytes if block else inputs * DENSE_DTYPES[format_].itemsize


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A (K, N) weight as N rows of K values each.

    Attributes:
        rows: uint8 of shape (N, bytes of a row); the bytes of a row are contiguous, rows ascend in memory.
        format: the encoding of a row. F32, F16, BF16: little-endian values. Blocks of 32 values: Q4_0 is <f16 scale>
            <16 bytes>, value = scale * (q - 8); Q4_1 is <f16 scale><f16 minimum><16 bytes>, value = scale * q + minimum;
            Q8_0 is <f16 scale><32 signed bytes>, value = scale * q. The low nibble of byte i is value i,
            the high one value i + 16. Q5_0, Q5_1, IQ4_NL and MXFP4 have blocks of 32 values too, in 22, 24, 18 and 17 bytes;
            Q4_K, Q5_K, Q6_K, IQ4_XS, Q2_K and Q3_K have blocks of 256 values in 144, 176, 210, 136, 84 and 110 bytes
            (docs/ops/linear.md).
        inputs: K; a multiple of the block for the block formats.

    Source:
        The block layouts of GGUF (ggml's block_q4_0, block_q4_1, block_q5_0, block_q5_1, block_q8_0, block_q2_K,
        block_q3_K, block_q4_K, block_q5_K, block_q6_K, block_iq4_nl, block_iq4_xs, block_mxfp4).
    """

    rows: np.ndarray
    format: Format
    inputs: int

    def __post_init__(self) -> None:
        rows = self.rows
        ok = isinstance(rows, np.ndarray) and rows.dtype == np.uint8 and rows.ndim == 2
        ascending = ok and (rows.shape[1] <= 1 or rows.strides[1] == 1) and (rows.shape[0] <= 1 or rows.strides[0] >= 0)
        require(
            ascending or (ok and not rows.size),  # the strides of an empty array may be anything
            _CLASS,
            "rows",
            "a matrix of uint8 with contiguous, ascending rows",
            rows,
        )
        require(isinstance(self.format, Format), _CLASS, "format", "a Format", self.format)
        require_inputs(_CLASS, self.format, self.inputs)
        size = row_bytes(self.format, self.inputs)
        require(self.rows.shape[1] == size, _CLASS, "rows", f"{size} bytes wide", self.rows)

    @classmethod
    def from_array(cls, weight: Array) -> PackedWeight:
        """Packs a (K, N) float32, float16 or bfloat16 array."""
        matrix = arrays.view(_CLASS, "weight", weight)
        formats = {dtype: format_ for format_, dtype in DENSE_DTYPES.items()}
        require(
            matrix.ndim == 2 and matrix.dtype in formats,
            _CLASS,
            "weight",
            "a float32, float16 or bfloat16 matrix",
            matrix,
        )
        inputs, outputs = matrix.shape
        rows = np.ascontiguousarray(matrix.T).view(np.uint8).reshape(outputs, inputs * matrix.itemsize)
        return cls(rows, formats[matrix.dtype], inputs)

    @classmethod
    def stack(cls, *weights: PackedWeight) -> PackedWeight:
        """The weights concatenated along their outputs; all must have the same format and the same K."""
        require(len(weights) > 0, _CLASS, "weights", "one or more", Phrase("none"))
        first = weights[0]
        require(
            all(w.format == first.format and w.inputs == first.inputs for w in weights),
            _CLASS,
            "weights",
            "of one format and one number of inputs",
            [(w.format.name, w.inputs) for w in weights],
        )
        return cls(np.concatenate([w.rows for w in weights]), first.format, first.inputs)

    @classmethod
    def widened(cls, *weights: PackedWeight) -> PackedWeight:
        """The weights concatenated along their outputs as float32, whatever their formats; all must have the same K."""
        return cls.stack(*(cls.from_array(weight.dense()) for weight in weights))

    @property
    def shape(self) -> tuple[int, int]:
        """(K, N), the shape of the matrix."""
        return self.inputs, self.rows.shape[0]

    def dense(self, dtype: DTypeLike = np.float32) -> np.ndarray:
        """The (K, N) matrix: each value as the format defines it, exact in float32 or rounded once."""
        return self.values().astype(dtype, copy=False).T

    def values(self) -> np.ndarray:
        """The rows as float32 of shape (N, K)."""
        rows = np.ascontiguousarray(self.rows)
        if self.format in DENSE_DTYPES:
            return rows.view(DENSE_DTYPES[self.format]).astype(np.float32)
        block = BLOCKS[self.format.name]
        with np.errstate(invalid="ignore", over="ignore"):  # an infinite scale, or one that makes a value so
            values = block.read(rows.reshape(-1, block.bytes)).astype(np.float32)
        return values.reshape(self.rows.shape[0], self.inputs)
