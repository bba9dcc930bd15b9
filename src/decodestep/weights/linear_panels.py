"""A weight packed for the native core: panels of 32 outputs, in the order in which a product reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decodestep._base.checks import require, require_choice
from decodestep.weights.packed import Format, PackedWeight

# Bytes of 32 outputs by 32 inputs; csrc/linear/linear_panels.h has their order.
_BLOCK_BYTES = {Format.F32: 4096, Format.F16: 2048, Format.BF16: 2048, Format.Q4_0: 576, Format.Q4_1: 640, Format.Q8_0: 1088}
_QUANTISED = (Format.Q4_0, Format.Q4_1, Format.Q8_0)
_CACHE_LINE = 64


@dataclass(frozen=True, eq=False)
class LinearPanels:
    """A (K, N) weight in panels of 32 outputs, the form that `linear` and the decoder multiply by fastest. `pack` makes one.

    data: uint8, one axis, contiguous: for every 32 outputs, for every 32 inputs, one block of 576 (Q4_0), 640 (Q4_1), 1088
        (Q8_0), 2048 (F16, BF16) or 4096 (F32) bytes. Outputs and inputs are padded with zeros to multiples of 32.
    format: F32, F16, BF16, Q4_0, Q4_1 or Q8_0.
    inputs, outputs: K and N. K is a multiple of 32 in Q4_0, Q4_1 and Q8_0.

    In these three formats a product also quantises the activations: each 32 of them in a row become integers in [-127, 127]
    times a scale, their largest magnitude / 127, rounded to nearest, ties to even. In the block of a row that has the largest
    scale, the residual (what rounding leaves) is quantised in the same way and multiplied too. In F32, F16 and BF16
    activations stay float32. `docs/ops/linear.md` has the rules.
    """

    data: np.ndarray
    format: Format
    inputs: int
    outputs: int

    @classmethod
    def pack(cls, weight: PackedWeight, format_: Format | None = None) -> LinearPanels:
        """Copies a weight into panels, on all threads.

        weight: a `PackedWeight` of any format.
        format_: the format of the panels: the weight's own, Q8_0 or BF16. None: the weight's own; Q8_0 for Q4_K, Q5_K and
            Q6_K, which have no panels.

        In its own format a weight keeps its values. Else they are rounded, ties to even: to bfloat16; or, each 32 values of
        an output, to integers in [-127, 127] times a scale, their largest magnitude / 127, itself rounded to float16.
        Raises ValueError for another format, or a quantised one if K is not a multiple of 32.
        """
        from decodestep.weights.pack_linear_panels import pack_linear_panels  # native code, only needed here

        own = weight.format if weight.format in _BLOCK_BYTES else Format.Q8_0
        chosen = own if format_ is None else format_
        require_choice("LinearPanels", "format", chosen, (own, Format.Q8_0, Format.BF16))
        inputs, outputs = weight.shape
        rule = f"a multiple of 32 in format {chosen.name}"
        require(chosen not in _QUANTISED or inputs % 32 == 0, "LinearPanels", "inputs", rule, inputs)
        size = -(-outputs // 32) * -(-inputs // 32) * _BLOCK_BYTES[chosen]
        space = np.empty(size + _CACHE_LINE, np.uint8)
        data = space[-space.ctypes.data % _CACHE_LINE :][:size]  # so that no vector of weights lies in two cache lines
        pack_linear_panels(weight, chosen, data)
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
        """Whether a product quantises the activations: in Q4_0, Q4_1 and Q8_0."""
        return self.format in _QUANTISED

    def rows(self) -> PackedWeight:
        """The weight as rows in the same format, a copy."""
        blocks = self.data.reshape(-1, -(-self.inputs // 32), _BLOCK_BYTES[self.format])  # (panel, input block, byte)
        rows = self._quantised_rows(blocks) if self.quantises_activations else self._dense_rows(blocks)
        return PackedWeight(rows[: self.outputs], self.format, self.inputs)

    def _dense_rows(self, blocks: np.ndarray) -> np.ndarray:
        panels, inputs = blocks.shape[0], 32 * blocks.shape[1]
        size = 4 if self.format == Format.F32 else 2
        values = blocks.reshape(panels, inputs, 32, size)  # (panel, input, output, byte of a value)
        values = values.swapaxes(1, 2)[:, :, : self.inputs]  # (panel, output, input, byte of a value)
        return np.ascontiguousarray(values).reshape(-1, self.inputs * size)

    def _quantised_rows(self, blocks: np.ndarray) -> np.ndarray:
        panels, count = blocks.shape[:2]
        body_bytes = 1024 if self.format == Format.Q8_0 else 512
        body = blocks[..., :body_bytes].reshape(panels, count, -1, 32, 4)  # (panel, block, quad, output, byte of the quad)
        body = body.transpose(0, 3, 1, 2, 4).reshape(panels, 32, count, -1)  # (panel, output, block, byte)
        head = blocks[..., body_bytes:].reshape(panels, count, -1, 32, 2)  # (panel, block, scale or minimum, output, byte)
        head = head.transpose(0, 3, 1, 2, 4).reshape(panels, 32, count, -1)  # (panel, output, block, byte)
        if self.format == Format.Q8_0:
            body = body ^ 0x80  # stored plus 128
        return np.concatenate([head, body], axis=-1).reshape(panels * 32, -1)
