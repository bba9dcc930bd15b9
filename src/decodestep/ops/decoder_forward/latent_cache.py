"""The layout of the cache of latent attention: pages of latents, of rope keys and of index keys, and their rows in bytes."""

from __future__ import annotations

import numpy as np

from decodestep._base.arrays import BFLOAT16
from decodestep.ops.decoder_forward.group_cache import PAGE

SCALE_BYTES = 4  # of the scale at the end of an int8 row


def latent_page_shapes(dtype: np.dtype, latent: int, rope: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of a page of rope keys and of latents of these widths. dtype: of the latents."""
    return (PAGE, rope), page_shape(dtype, latent)


def page_shape(dtype: np.dtype, width: int) -> tuple[int, ...]:
    """Of rows of a width: latents or index keys."""
    return PAGE, width + (SCALE_BYTES if dtype == np.int8 else 0)


def rope_key_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype of the rope keys beside latents of a dtype."""
    return BFLOAT16 if dtype == np.int8 else dtype


def to_bytes(rows: np.ndarray) -> np.ndarray:
    """float32 rows as integers in [-127, 127] and the bytes of their scale, largest magnitude / 127; NaN spreads in its row."""
    largest = np.abs(rows).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(largest == 0, np.float32(0), np.float32(127) / largest)
        whole = np.clip(np.rint(np.nan_to_num(rows * factor, posinf=np.inf, neginf=-np.inf)), -128, 127).astype(np.int8)
    return np.concatenate([whole, (largest / np.float32(127)).view(np.int8)], axis=-1)


def from_bytes(rows: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """The integers of rows in bytes, and their scales (..., 1)."""
    scales = np.ascontiguousarray(rows[..., -SCALE_BYTES:]).view(np.float32)
    return rows[..., :-SCALE_BYTES].astype(dtype), scales.astype(dtype)
