"""mixture_of_experts by its definition, expert by expert."""

from __future__ import annotations

import numpy as np

from decodestep.ops.linear.reference import linear
from decodestep.ops.mixture_of_experts import blocks
from decodestep.ops.swiglu.reference import swiglu
from decodestep.weights.feed_forward import FeedForward


def feed_forward(x: np.ndarray, block: FeedForward) -> np.ndarray:
    return blocks.feed_forward(x, block, linear, swiglu)


def mixture(
    x: np.ndarray, experts: np.ndarray, weights: np.ndarray, routed: FeedForward, shared: FeedForward | None
) -> np.ndarray:
    return blocks.mixture(x, experts, weights, routed, shared, feed_forward)
