"""A weight packed for the native core: panels of 32 outputs, in the order in which a product reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decodestep import _native
from decodestep._base.checks import require, require_choice
from decodestep._base.dispatch import threads
from decodestep.weights.packed import Format, PackedWeight

_BLOCK_BYTES = {Format.F32: 4096, Format.F16: 2048, Format.BF16: 2048, Format.Q4_0: 576, Format.Q4_1: 640, Format.Q8_0: 1088}
_LINE = 64  # bytes of a line of the cache, with which the panels begin


@dataclass(frozen=True, eq=False)
class LinearPanels:
    """A (K, N) weight in panels, made by `pack`.

    A product with panels of Q4_0, Q4_1 or Q8_0 reads the activations as bytes: each 32 of them in a row as integers in
    [-127, 127] times their largest magnitude / 127, rounded to nearest even; and a row's coarsest block twice, the second time
    what rounding has left of it. With F32, F16 and BF16 they stay float32.
    """

    data: np.ndarray  # uint8, one dimension; csrc/linear/linear_panels.h has the layout
    format: Format
    inputs: int
    outputs: int

    @classmethod
    def pack(cls, weight: PackedWeight, format_: Format | None = None) -> LinearPanels:
        """Packs a weight, on all threads: as it is, or with its values rounded to Q8_0 or BF16; blocks of 256 become Q8_0.

        Q8_0: each 32 values of an output become integers in [-127, 127] times a float16 scale, their largest magnitude / 127.
        """
        own = weight.format if weight.format in _BLOCK_BYTES else Format.Q8_0
        chosen = own if format_ is None else format_
        require_choice("LinearPanels", "format", chosen, (own, Format.Q8_0, Format.BF16))
        inputs, outputs = weight.shape
        require(chosen not in (Format.Q4_0, Format.Q4_1, Format.Q8_0) or inputs % 32 == 0,
                "LinearPanels", "inputs", f"a multiple of 32 in format {chosen.name}", inputs)  # fmt: skip
        size = -(-outputs // 32) * -(-inputs // 32) * _BLOCK_BYTES[chosen]
        space = np.empty(size + _LINE, np.uint8)
        data = space[-space.ctypes.data % _LINE :][:size]
        _native.pack_linear_panels(weight.rows, int(weight.format), inputs, data, int(chosen), threads())
        return cls(data, chosen, inputs, outputs)

    @property
    def shape(self) -> tuple[int, int]:
        """(K, N), the shape of the matrix."""
        return self.inputs, self.outputs

    @property
    def reads_bytes(self) -> bool:
        """Whether products read the activations as bytes."""
        return self.format in (Format.Q4_0, Format.Q4_1, Format.Q8_0)

    def rows(self) -> PackedWeight:
        """The weight as rows again."""
        blocks = -(-self.inputs // 32)
        panels = self.data.reshape(-1, blocks, _BLOCK_BYTES[self.format])
        if not self.reads_bytes:
            width = 4 if self.format == Format.F32 else 2
            values = panels.reshape(len(panels), blocks * 32, 32, width).swapaxes(1, 2)
            return PackedWeight(
                np.ascontiguousarray(values[:, :, : self.inputs]).reshape(-1, self.inputs * width)[: self.outputs],
                self.format,
                self.inputs,
            )
        body = 1024 if self.format == Format.Q8_0 else 512
        quads = panels[..., :body].reshape(len(panels), blocks, -1, 32, 4).transpose(0, 3, 1, 2, 4)
        packed = quads.reshape(len(panels), 32, blocks, -1)
        scales = panels[..., body:].reshape(len(panels), blocks, -1, 32, 2).transpose(0, 3, 1, 2, 4)
        heads = scales.reshape(len(panels), 32, blocks, -1)
        if self.format == Format.Q8_0:
            packed = packed ^ 0x80
        rows = np.concatenate([heads, packed], axis=-1).reshape(len(panels) * 32, -1)
        return PackedWeight(rows[: self.outputs], self.format, self.inputs)
