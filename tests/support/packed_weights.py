"""Weights at random, of every format."""

from __future__ import annotations

import gguf
import ml_dtypes
import numpy as np

from decodestep.weights import Format, PackedWeight

DENSE = {Format.F32: np.float32, Format.F16: np.float16, Format.BF16: ml_dtypes.bfloat16}

# Where the halves that scale a block stand; the other bytes may be anything.
SCALES = {
    Format.Q4_0: (0,),
    Format.Q4_1: (0, 2),
    Format.Q8_0: (0,),
    Format.Q4_K: (0, 2),
    Format.Q5_K: (0, 2),
    Format.Q6_K: (208,),
    Format.Q5_0: (0,),
    Format.Q5_1: (0, 2),
    Format.IQ4_NL: (0,),
    Format.IQ4_XS: (0,),
    Format.Q2_K: (80, 82),
    Format.Q3_K: (108,),
}


def put_scales(format_: Format, blocks: np.ndarray, scales: np.ndarray) -> None:
    """Sets the scales and minima of blocks (..., bytes) to (..., 1) float16; an MXFP4 block's to the power of two below."""
    for at in SCALES.get(format_, ()):
        blocks[..., at : at + 2] = scales.astype(np.float16).view(np.uint8)
    if format_ == Format.MXFP4:
        blocks[..., 0] = np.clip(127 + np.frexp(np.abs(scales[..., 0].astype(np.float64)))[1], 0, 255)


def weight(format_: Format, inputs: int, outputs: int, rng: np.random.Generator) -> PackedWeight:
    if format_ in DENSE:
        return PackedWeight.from_array(rng.normal(size=(inputs, outputs)).astype(DENSE[format_]))
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[format_.name]]
    rows = rng.integers(0, 256, (outputs, inputs // values, size), np.uint8)
    put_scales(format_, rows, rng.normal(size=(outputs, inputs // values, 1)))
    for at in SCALES.get(format_, ())[1:]:  # minima
        rows[..., at : at + 2] = rng.normal(size=(outputs, inputs // values, 1)).astype(np.float16).view(np.uint8)
    return PackedWeight(rows.reshape(outputs, inputs // values * size), format_, inputs)
