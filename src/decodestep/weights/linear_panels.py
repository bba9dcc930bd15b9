"""A weight packed for the native core in panels of 32 outputs, in the order in which products read them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decodestep._base import arrays
from decodestep._base.arrays import Integers
from decodestep._base.checks import is_int, require, require_within
from decodestep._base.memory import Allocate, new_bytes
from decodestep.weights.blocks import BLOCKS
from decodestep.weights.lazy_weight import LazyWeight, RowWeight
from decodestep.weights.packed import DENSE_FORMATS, Format, PackedWeight, require_inputs, row_bytes

_CLASS = "LinearPanels"
PANEL = 32  # outputs
_DENSE_INPUTS = 32  # to which inputs are padded in dense formats; csrc/linear/linear_panels.h defines the layouts


@dataclass(frozen=True, eq=False)
class LinearPanels:
    """A (K, N) weight in panels of 32 outputs, the fastest form for `linear` and the decoder. `pack` makes one.

    In block formats a product also quantises the activations: each 32 of them in a row become integers in [-127, 127] times a
    scale, their largest magnitude / 127, rounded to nearest, ties to even. In the block of a row with the largest scale, the
    residual (the rounding error) is quantised in the same way and multiplied too. With F32, F16 and BF16 weights activations
    stay float32. `docs/ops/linear.md` has the rules.

    Attributes:
        data: uint8, one axis, contiguous: for every 32 outputs, for every block of inputs, 32 times the bytes of a block.
            Outputs are padded with zeros to a multiple of 32, in the dense formats inputs too. The size is that of the rows,
            except that Q3_K, Q4_K, Q5_K and IQ4_XS, whose six-bit scales and minima take a byte each, are 3.6, 2.8, 2.3 and 1.5
            % larger.
        format: the format of the values.
        inputs: K, a multiple of the format's block.
        outputs: N.

    Raises:
        ValueError: if the fields contradict each other.
    """

    data: np.ndarray
    format: Format
    inputs: int
    outputs: int

    def __post_init__(self) -> None:
        require(isinstance(self.format, Format), _CLASS, "format", "a Format", self.format)
        require_inputs(_CLASS, self.format, self.inputs)
        require(is_int(self.outputs) and self.outputs >= 0, _CLASS, "outputs", "an integer >= 0", self.outputs)
        size, data = packed_bytes(self.format, self.inputs, self.outputs), self.data
        ok = isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape == (size,) and data.flags.c_contiguous
        require(ok, _CLASS, "data", f"{size} contiguous bytes of uint8", data)

    @classmethod
    def pack(cls, weight: RowWeight, format_: Format | None = None, *, allocate: Allocate = new_bytes) -> LinearPanels:
        """Copies a weight into panels, on all threads.

        In its own format a weight keeps its values. Otherwise they are rounded: to bfloat16, ties to even; for Q8_0 each 32
        values of an output to integers in [-127, 127] times a scale, their largest magnitude / 127 rounded to float16; for the
        other formats as `csrc/linear/quantise_blocks.h` says. `has_finite_scales` tells whether the format can hold them.

        Args:
            weight: a `PackedWeight` of any format, or `LazyWeight`, which are read or made while they are packed.
            format_: the format of the panels: the weight's own, or one that values are rounded to (BF16, Q8_0, Q4_0, Q5_0,
                Q2_K, Q3_K, Q4_K, Q5_K, Q6_K). None: the weight's own.
            allocate: makes the memory of the panels: uint8 (size,), aligned to a cache line.

        Raises:
            ValueError: for another format, or a quantised one if K is not a multiple of its block.
        """
        from decodestep.weights.native import pack_linear_panels  # native code, only needed here

        require(isinstance(weight, (PackedWeight, LazyWeight)), _CLASS, "weight", "a PackedWeight or LazyRows", weight)
        chosen = weight.format if format_ is None else format_
        rounded = (Format[name] for name, block in BLOCKS.items() if block.rounded)
        possible = dict.fromkeys((weight.format, Format.BF16, *rounded))
        known = isinstance(chosen, Format) and chosen in possible  # a number may equal a Format
        require(known, _CLASS, "format", f"one of {', '.join(each.name for each in possible)}", chosen)
        inputs, outputs = weight.shape
        require_inputs(_CLASS, chosen, inputs)
        data = allocate(packed_bytes(chosen, inputs, outputs))
        if isinstance(weight, PackedWeight):
            pack_linear_panels(weight, chosen, data)
        else:
            weight.pack(chosen, data)
        return cls(data, chosen, inputs, outputs)

    @property
    def shape(self) -> tuple[int, int]:
        """(K, N), the shape of the matrix."""
        return self.inputs, self.outputs

    @property
    def nbytes(self) -> int:
        """Bytes of the panels, padding included."""
        return self.data.nbytes

    @property
    def quantises_activations(self) -> bool:
        """Whether a product quantises the activations: true for every block format."""
        return self.format not in DENSE_FORMATS

    def has_finite_scales(self) -> bool:
        """Whether the float16 scales and minima of a format that values are rounded to are finite, which they are not if the
        values were too large. True for other formats."""
        block = BLOCKS.get(self.format.name)
        if block is None or not block.rounded:
            return True
        scales = self.data.reshape(-1, block.panel_bytes)[:, -2 * PANEL * len(block.halves) :]
        return bool(np.isfinite(scales.view(np.float16)).all())

    def rows(self, ids: Integers | None = None) -> PackedWeight:
        """The weight as rows in the same format, a copy, on all threads.

        Args:
            ids: which outputs, integers in [0, N), in this order; None: all.

        Raises:
            ValueError: for others.
        """
        from decodestep.weights.native import unpack_linear_panels  # native code, only needed here

        chosen = np.arange(self.outputs, dtype=np.int64) if ids is None else arrays.integers(_CLASS, "ids", ids, rank=1)
        require_within(_CLASS, "ids", chosen, self.outputs)
        rows = np.empty((len(chosen), row_bytes(self.format, self.inputs)), np.uint8)
        unpack_linear_panels(self, chosen, rows)
        return PackedWeight(rows, self.format, self.inputs)


def packed_bytes(format_: Format, inputs: int, outputs: int) -> int:
    """The size of `LinearPanels.data`."""
    block = BLOCKS.get(format_.name)
    if block is None:
        bytes_of_panel = -(-inputs // _DENSE_INPUTS) * PANEL * row_bytes(format_, _DENSE_INPUTS)
    else:
        bytes_of_panel = inputs // block.values * block.panel_bytes
    return -(-outputs // PANEL) * bytes_of_panel
