"""Packs `LinearPanels` in the native core. A module of its own, so that the weight's class needs no native code."""

from __future__ import annotations

import numpy as np

from decodestep import _native
from decodestep._base.threads import threads
from decodestep.weights.packed import Format, PackedWeight


def pack_linear_panels(weight: PackedWeight, format_: Format, data: np.ndarray) -> None:
    """Writes the panels of `weight` in `format_` to `data`, uint8 of their size."""
    _native.pack_linear_panels(
        w=weight.rows,
        format=int(weight.format),
        inputs=weight.inputs,
        panels=data,
        panel_format=int(format_),
        threads=threads(),
    )
