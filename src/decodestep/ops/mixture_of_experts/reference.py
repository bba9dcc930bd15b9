"""mixture_of_experts as its definition, expert by expert."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from decodestep.ops.linear.reference import linear
from decodestep.ops.swiglu.reference import swiglu
from decodestep.weights.feed_forward import FeedForward

Block = Callable[[np.ndarray, FeedForward], np.ndarray]


def feed_forward(x: np.ndarray, block: FeedForward) -> np.ndarray:
    up = linear(x, block.up)
    return linear(squared_relu(up) if block.gate is None else swiglu(linear(x, block.gate), up), block.down)


def squared_relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0)^2; NaN stays."""
    return np.square(np.maximum(x, 0))


def mixture(
    x: np.ndarray,
    experts: np.ndarray,
    weights: np.ndarray,
    routed: FeedForward,
    shared: FeedForward | None,
    through: Block = feed_forward,
) -> np.ndarray:
    """through(x, block): the products, here in x's dtype."""
    y = np.zeros_like(x, order="C")
    for expert, tokens, factors in _by_expert(experts, weights):
        y[tokens] += factors[:, None] * through(x[tokens], routed.block(expert))
    return y if shared is None else y + through(x, shared)


def _by_expert(experts: np.ndarray, weights: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Each expert that is used, ascending, with its tokens and their weights; a token that names it twice comes twice."""
    for expert in np.unique(experts):
        for column in range(experts.shape[1]):
            tokens = np.flatnonzero(experts[:, column] == expert)
            if len(tokens):
                yield int(expert), tokens, weights[tokens, column]
