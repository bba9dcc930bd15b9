"""What a call asks of all its rows, and what it returns, in the form that all backends take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from decodestep.random import reference as random

# noise(b, ids): that of the survivors `ids` of row b, in their order.
Noise = Callable[[int, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class GivenNoise:
    """Noise that is read at the position among the survivors."""

    q: np.ndarray

    def __call__(self, b: int, ids: np.ndarray) -> np.ndarray:
        noise: np.ndarray = np.abs(self.q[b, : ids.size])
        return noise


@dataclass(frozen=True)
class SeededNoise:
    """Noise that belongs to vocabulary ids."""

    seeds: np.ndarray
    positions: np.ndarray

    def __call__(self, b: int, ids: np.ndarray) -> np.ndarray:
        position = self.positions[b].astype(np.uint32)
        return random.noise("exponential", self.seeds[b], position, ids.astype(np.uint32), ids.shape)


class Rules(NamedTuple):
    """The arguments that are the same for all rows.

    guess: how many leading tokens top-p alone tries first (0: all); it changes no result.
    kernel_exact: V1's second softmax is taken of the probabilities, as the device's kernel does, not of the logits.
    """

    noise: Noise | None
    eps: float
    guess: int
    largest_k: int = 1024
    input_is_logits: bool = True
    kernel_exact: bool = False
    need_logits: bool = False
    need_survivors: bool = False


class Outputs(NamedTuple):
    """The results, one row per row of the logits; None for those that were not requested."""

    chosen: np.ndarray | None
    masked: np.ndarray | None
    ids: np.ndarray | None
    values: np.ndarray | None
