"""TensorScatter as the specification writes it."""

from __future__ import annotations

import numpy as np


def scatter(present: np.ndarray, update: np.ndarray, starts: np.ndarray, axis: int) -> None:
    """Writes `update` into `present`. Linear indices never wrap, so the modulus of the circular mode does not change them."""
    present, update = np.moveaxis(present, axis, 1), np.moveaxis(update, axis, 1)
    rows, steps = present.shape[1], update.shape[1]
    if rows == 0:
        return
    for b, start in enumerate(starts.tolist()):
        slots = [(start + t) % rows for t in range(steps)]
        present[b, slots] = update[b]
