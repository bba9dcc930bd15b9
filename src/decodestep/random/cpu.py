"""Noise from the native kernels."""

from __future__ import annotations

import numpy as np

from decodestep import _native
from decodestep._base import arrays


def noise(op: str, seed: np.ndarray, position: np.ndarray, token: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The records are uint64, uint32 and uint32, and broadcast to `shape`."""
    # The kernel broadcasts single values itself; only arrays of several values are written out to the broadcast shape.
    columns = (r if r.size == 1 else np.broadcast_to(r, shape) for r in (seed, position, token))
    flat = [arrays.contiguous(column).reshape(-1) for column in columns]
    made = np.empty(shape, np.uint32 if op == "noise_bits" else np.float32)
    getattr(_native, op)(*flat, made.reshape(-1))
    return made
