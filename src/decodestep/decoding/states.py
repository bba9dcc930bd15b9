"""The storage of recurrent states: numbered rows, each with the states of all layers after some token of a sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from decodestep._base.memory import untouched_zeros
from decodestep.decoding.config import Config

Shape: TypeAlias = tuple[int, ...]

ZERO_ROW = 0  # never written: what a sequence's first token reads
_ALIGNED = 16  # values: a cache line


class StateLayout:
    """Where the states of a model's layers lie in a row of float32 values: of each layer its recurrent state, then its
    convolution state, each beginning at a cache line.

    shapes: of both states of every layer, as the operators have them; None for one that a layer does not have.
    size: the values of a row. row_bytes: its bytes. offsets: int64 (L, 2), where each state begins, -1 for one that is not
    there.
    """

    def __init__(self, shapes: Sequence[tuple[Shape | None, Shape | None]]) -> None:
        self.shapes = tuple(shapes)
        self.size = 0
        self.offsets = np.full((len(self.shapes), 2), -1, np.int64)
        for layer, parts in enumerate(self.shapes):
            for part, shape in enumerate(parts):
                if shape is not None:
                    self.offsets[layer, part] = self.size
                    self.size += -(-math.prod(shape) // _ALIGNED) * _ALIGNED

    @property
    def row_bytes(self) -> int:
        return self.size * 4

    def views(self, rows: np.ndarray) -> list[tuple[np.ndarray | None, np.ndarray | None]]:
        """Of every layer its recurrent state and its convolution state, None where it has none.

        rows: float32 (..., size), one or several; the views have its leading axes.
        """
        return [
            (self._view(rows, layer, 0, recurrent), self._view(rows, layer, 1, convolution))
            for layer, (recurrent, convolution) in enumerate(self.shapes)
        ]

    def _view(self, rows: np.ndarray, layer: int, part: int, shape: Shape | None) -> np.ndarray | None:
        if shape is None:
            return None
        first = int(self.offsets[layer, part])
        return rows[..., first : first + math.prod(shape)].reshape(*rows.shape[:-1], *shape)

    def new_rows(self, count: int) -> np.ndarray:
        """Zeros, float32 (count, size), aligned to a cache line. Memory is allocated only when rows are written."""
        return untouched_zeros((count, self.size), np.dtype(np.float32), huge_pages=True)


def state_layout(config: Config) -> StateLayout | None:
    """That of a model; None if it has only attention."""
    shapes = [_shapes(config, layer) for layer in range(config.layers)]
    return StateLayout(shapes) if any(shape for parts in shapes for shape in parts) else None


def replay_width(config: Config) -> int:
    """The values of a token from which the native step brings all states of a model forward: what convolutions read, and of
    each head a step or the logarithm of a decay, and beta. 0 for a model that has only attention."""
    delta, mamba, width = config.delta, config.mamba, 0
    for mixer in map(config.mixer_of, range(config.layers)):
        if mixer == "delta" and delta is not None:
            width += delta.channels + 2 * delta.value_heads
        if mixer == "mamba" and mamba is not None:
            width += mamba.channels + mamba.heads
        if mixer == "convolution":
            width += config.hidden
    return width


def _shapes(config: Config, layer: int) -> tuple[Shape | None, Shape | None]:
    mixer, delta, mamba, convolution = config.mixer_of(layer), config.delta, config.mamba, config.convolution
    if mixer == "delta" and delta is not None:
        return (delta.value_heads, delta.key_dim, delta.value_dim), (delta.taps - 1, delta.channels)
    if mixer == "mamba" and mamba is not None:
        return (mamba.heads, mamba.state, mamba.head_dim), (mamba.taps - 1, mamba.channels)
    if mixer == "convolution" and convolution is not None:
        return None, (convolution.taps - 1, config.hidden)
    return None, None
