"""Feed-forward blocks and their mixture in NumPy, by the products and the activation that the caller has."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from decodestep.ops.linear.reference import with_bias
from decodestep.weights.feed_forward import FeedForward, on_host

Block = Callable[[np.ndarray, FeedForward], np.ndarray]


def feed_forward(
    x: np.ndarray,
    block: FeedForward,
    linear: Callable[..., np.ndarray],
    swiglu: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
    with np.errstate(all="ignore"):  # infinities and NaN propagate as in IEEE arithmetic
        up = with_bias(linear(x, on_host(block.up)), block.up_bias)
        down = on_host(block.down)
        if block.gate is None:
            return with_bias(linear(squared_relu(up), down), block.down_bias)
        gate = with_bias(linear(x, on_host(block.gate)), block.gate_bias)
        gated = {"silu": swiglu, "gelu": gelu_gated, "clamped_silu": clamped_swiglu}[block.activation]
        return with_bias(linear(gated(gate, up), down), block.down_bias)


def gelu_gated(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """GELU in its form with tanh, times up: gate / (1 + exp(-2 z)) * up with z = sqrt(2 / pi) * (gate + 0.044715 * gate^3)."""
    root = gate.dtype.type(math.sqrt(2 / math.pi))
    return 0.5 * gate * (1 + np.tanh(root * (gate + gate.dtype.type(0.044715) * gate * gate * gate))) * up


def clamped_swiglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """g / (1 + exp(-1.702 g)) * (u + 1) with g = min(gate, 7) and u = up brought into [-7, 7]; NaN stays."""
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
    return gate / (1 + np.exp(gate.dtype.type(-1.702) * gate)) * (up + 1)


def squared_relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0)^2; NaN stays."""
    return np.square(np.maximum(x, 0))


def mixture(
    x: np.ndarray,
    experts: np.ndarray,
    weights: np.ndarray,
    routed: FeedForward,
    shared: FeedForward | None,
    through: Block,
) -> np.ndarray:
    """through(x, block): one block. Expert by expert; sums are in x's dtype."""
    y = np.zeros_like(x, order="C")
    with np.errstate(all="ignore"):
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
