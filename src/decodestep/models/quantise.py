"""Quantises values to GGUF's block formats.

K-quants, Q4_0 and Q5_0 are made by the native core, other types by the gguf package.
"""

from __future__ import annotations

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize

from decodestep._base.memory import Allocate, new_bytes
from decodestep.weights.blocks import BLOCKS
from decodestep.weights.file_weight import FileWeight, FileWeightError
from decodestep.weights.lazy_weight import RowWeight, whole
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.native import quantise_blocks
from decodestep.weights.packed import DENSE_DTYPES, Format

_PIECE = 1 << 19  # values that are worked on at a time: they stay in a near cache
# Q8_0 is made as llama.cpp makes it, of the scale before it is rounded.
_NATIVE = {GGMLQuantizationType[name]: Format[name] for name, block in BLOCKS.items() if block.rounded and name != "Q8_0"}
_DENSE = {GGMLQuantizationType[format_.name]: dtype for format_, dtype in DENSE_DTYPES.items()}
# In place of formats whose blocks of 256 the inputs do not fill.
_NARROWER = {Format.Q2_K: Format.Q4_0, Format.Q3_K: Format.Q4_0, Format.Q4_K: Format.Q5_0}


def quantise(values: np.ndarray, type_: GGMLQuantizationType) -> np.ndarray:
    """Rows (N, K) of float32 as (N, bytes of a row) uint8. K is a multiple of the type's block.

    `has_finite_scales` tells whether the type can hold them.
    """
    if type_ in _NATIVE:
        return quantise_blocks(values, _NATIVE[type_])
    rows, width = values.shape
    block, size = GGML_QUANT_SIZES[type_]
    made = np.empty((rows, width // block * size), np.uint8)
    step = max(1, _PIECE // max(width, 1))
    for first in range(0, rows, step):
        part = np.ascontiguousarray(values[first : first + step], np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # scales that are not finite, blocks of zeros
            made[first : first + step] = quantize(part, type_).view(np.uint8).reshape(len(part), -1)
    return made


def has_finite_scales(made: np.ndarray, type_: GGMLQuantizationType) -> bool:
    """Whether the float16 numbers of all blocks are finite; for dense types, whether all values are."""
    if type_ in _DENSE:
        return bool(np.isfinite(made.view(_DENSE[type_])).all())
    block = BLOCKS[type_.name]
    blocks = made.reshape(-1, block.bytes)
    return all(np.isfinite(blocks[:, at : at + 2].copy().view(np.float16)).all() for at in block.halves)


def pack_panels(weight: RowWeight, format_: Format, allocate: Allocate = new_bytes) -> LinearPanels:
    """A weight in panels of Q8_0, Q4_0, Q2_K, Q3_K or Q4_K; of Q4_0, Q5_0 or BF16 if its inputs are not a multiple of their
    block. A weight of that type keeps its values.

    Raises FileRowsError for values whose scales are beyond float16's range.
    """
    inputs = weight.shape[0]
    if inputs % BLOCKS[format_.name].values:
        format_ = _NARROWER.get(format_, format_)
    if inputs % BLOCKS[format_.name].values:
        format_ = Format.BF16
    return _within_range(LinearPanels.pack(weight, format_, allocate=allocate), weight)


def _within_range(panels: LinearPanels, weight: RowWeight) -> LinearPanels:
    if panels.has_finite_scales():
        return panels
    if isinstance(weight, FileWeight) and len(weight.parts) > 1:
        for part in weight.tensors():
            pack_panels(part, panels.format)  # raises for the one at fault
    # Rows that were put in another order, or widened, are no longer a file's.
    sizes = f"a weight of {panels.inputs} inputs and {panels.outputs} outputs"
    what = weight.parts[0].name if isinstance(weight, FileWeight) else sizes
    fault = f"too large for {panels.format.name}" if np.isfinite(whole(weight).values()).all() else "that are not finite"
    raise FileWeightError(f"{what:.200} has values {fault}")
