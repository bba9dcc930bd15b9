"""Packs a `PanelWeight` in the native core. A module of its own, so that the weight's class needs no native code."""

from __future__ import annotations

import numpy as np

from decodestep import _native
from decodestep._base import arrays
from decodestep._base.threads import threads


def pack_prolog_panels(weight: np.ndarray, inputs: int, outputs: int, count: int, data: np.ndarray) -> None:
    """Packs (inputs, outputs), `count` of them unless it is 0, or NZ storage as (N / c0, rows, c0), into `data`."""
    _native.pack_panels(
        w=arrays.bits(arrays.contiguous(weight)),
        inputs=inputs,
        outputs=outputs,
        count=count,
        to=data.view(np.uint8),
        threads=threads(),
    )
