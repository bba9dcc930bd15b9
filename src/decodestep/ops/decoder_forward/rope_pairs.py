"""Rope in NumPy, of pairs of neighbouring columns."""

from __future__ import annotations

import numpy as np


def turn_pairs(x: np.ndarray, sin: np.ndarray, cos: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first and the second columns of the pairs of x (..., D), each pair turned by its angle. sin, cos: (..., D / 2)."""
    even, odd = x[..., ::2], x[..., 1::2]
    return even * cos - odd * sin, odd * cos + even * sin


def turn_first_columns(heads: np.ndarray, sin: np.ndarray, cos: np.ndarray) -> np.ndarray:
    """(T, heads, D), the first columns of each after their rope, pairs side by side. sin, cos: (T, pairs)."""
    width = 2 * sin.shape[-1]
    turned = np.stack(turn_pairs(heads[..., :width], sin[:, None], cos[:, None]), axis=-1)
    return np.concatenate([turned.reshape(*heads.shape[:2], width), heads[..., width:]], axis=-1)
