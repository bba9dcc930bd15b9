"""float8_e4m3fn as MlaProlog quantises to it: by row, by head and by tile with a float32 scale, by block with a power of two.

Everything saturates at 448 and is rounded half to even; NaN stays NaN. A factor of 1 / 448 is rounded to the working precision
before it multiplies a largest magnitude.
"""

from __future__ import annotations

import numpy as np

from decodestep._base.arrays import EXPONENT8, FLOAT8
from decodestep.ops.mla_prolog.scenarios import BLOCK, TILE

LARGEST = 448.0
LEAST_OF_TILE = 1e-4  # below which a tile's largest magnitude counts as this
_BIAS, _EXPONENT_OF_LARGEST, _NAN = 127, 8, 255
_LEAST_NORMAL = 2.0**-126


def to_float8(v: np.ndarray) -> np.ndarray:
    return np.clip(v, -LARGEST, LARGEST).astype(FLOAT8)


def quantise_rows(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One scale for each row of the last axis, (q, scale[..., 1]); zeros have scale 0 and q 0."""
    scale = _share(np.abs(z).max(axis=-1, keepdims=True))
    return to_float8(np.where(scale == 0, z, z / scale)), scale


def quantise_tiles(latents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One scale for each TILE values of the rows (T, Hckv): q (T, Hckv), scale (T, Hckv / TILE)."""
    tiles = latents.reshape(len(latents), -1, TILE)
    largest = np.abs(tiles).max(axis=-1, keepdims=True)
    scale = _share(np.where(largest < LEAST_OF_TILE, largest.dtype.type(LEAST_OF_TILE), largest))  # NaN stays
    return to_float8(tiles / scale).reshape(latents.shape), scale[..., 0]


def quantise_blocks(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The OCP's MX format: each BLOCK values of a row share 2^(floor(log2(largest)) - 8); q like z, scale (T, width / BLOCK).

    A block of zeros, or of subnormals, has the least scale, 2^-127, and q 0; one with an infinity or NaN is all NaN.
    """
    blocks = z.reshape(len(z), -1, BLOCK)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    exponent = np.frexp(largest)[1] - 1 - _EXPONENT_OF_LARGEST + _BIAS
    exponent = np.where(np.isfinite(largest), np.clip(np.where(largest < _LEAST_NORMAL, 0, exponent), 0, _NAN - 1), _NAN)
    scale = exponent.astype(np.uint8).view(EXPONENT8)
    scaled = np.ldexp(np.where(largest < _LEAST_NORMAL, largest.dtype.type(0), blocks), _BIAS - exponent)
    q = to_float8(np.where(exponent == _NAN, np.nan, scaled))
    return q.reshape(z.shape), scale[..., 0]


def by_input(scale: np.ndarray) -> np.ndarray:
    """Scales of blocks, (rows, width / BLOCK), for every value of the rows."""
    return np.repeat(scale, BLOCK, axis=-1)


def _share(largest: np.ndarray) -> np.ndarray:
    return largest * largest.dtype.type(1 / LARGEST)
