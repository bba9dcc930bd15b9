"""Unpacks `LinearPanels` in the native core. A module of its own, so that the weight's class needs no native code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from decodestep import _native
from decodestep._base.threads import threads

if TYPE_CHECKING:
    from decodestep.weights.linear_panels import LinearPanels


def unpack_linear_panels(panels: LinearPanels, ids: np.ndarray, rows: np.ndarray) -> None:
    """Writes outputs `ids`, int64 in C order, to `rows`, uint8 of as many rows of the panels' format."""
    _native.unpack_linear_panels(
        panels=panels.data,
        format=int(panels.format),
        inputs=panels.inputs,
        outputs=panels.outputs,
        ids=ids,
        rows=rows,
        threads=threads(),
    )
