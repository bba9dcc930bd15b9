"""A weight whose rows are read or made when they are needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeAlias

import numpy as np

from decodestep.weights.packed import Format, PackedWeight


class LazyWeight(ABC):
    """The rows of a (K, N) weight that are in memory only while they are packed.

    format, inputs, shape: as of a `PackedWeight`.
    """

    def __init__(self, format_: Format, inputs: int, outputs: int) -> None:
        self.format, self.inputs, self.shape = format_, inputs, (inputs, outputs)

    @abstractmethod
    def whole(self) -> PackedWeight:
        """All rows, in new memory."""

    @abstractmethod
    def pack(self, format_: Format, panels: np.ndarray) -> None:
        """Packs the rows into `panels`, the data of a `LinearPanels` of that format, a piece of them at a time."""


RowWeight: TypeAlias = PackedWeight | LazyWeight


def whole(weight: RowWeight) -> PackedWeight:
    """The weight with its rows in memory."""
    return weight.whole() if isinstance(weight, LazyWeight) else weight
