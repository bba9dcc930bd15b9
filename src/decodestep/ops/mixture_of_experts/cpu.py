"""The call into the native core."""

from __future__ import annotations

from functools import partial

import numpy as np

from decodestep import _native
from decodestep._base import arrays
from decodestep._base.threads import threads
from decodestep.ops.linear.cpu import linear, panel_argument
from decodestep.ops.mixture_of_experts import blocks
from decodestep.ops.swiglu.cpu import swiglu
from decodestep.weights.feed_forward import GATES, FeedForward
from decodestep.weights.linear_panels import LinearPanels


def mixture(
    x: np.ndarray, experts: np.ndarray, weights: np.ndarray, routed: FeedForward, shared: FeedForward | None
) -> np.ndarray:
    if not (in_whole_panels(routed) and (shared is None or in_whole_panels(shared))):
        through = partial(blocks.feed_forward, linear=linear, swiglu=swiglu)
        return blocks.mixture(x, experts, weights, routed, shared, through)
    y = np.empty(x.shape, np.float32)
    _native.mixture_of_experts(
        x=arrays.contiguous_rows(x),
        experts=experts,
        weights=arrays.contiguous(weights),
        routed=native_panels(routed),
        count=routed.count,
        shared=native_panels(shared),
        y=y,
        threads=threads(),
    )
    return y


def in_whole_panels(block: FeedForward) -> bool:
    """Whether the core's sweep serves these weights."""
    panels = all(isinstance(weight, LinearPanels) for weight in block.weights)
    return panels and block.width % 32 == 0 and block.hidden % 32 == 0


def native_panels(block: FeedForward | None) -> tuple[list[tuple[np.ndarray, int, int]], int, list[np.ndarray | None]]:
    """gate, if there is one, up and down, the number of its activation, and the three biases, as the core takes them."""
    if block is None:
        return [], 0, [None] * 3
    biases = [None if b is None else arrays.contiguous(b) for b in (block.gate_bias, block.up_bias, block.down_bias)]
    return [panel_argument(w) for w in block.weights if isinstance(w, LinearPanels)], GATES.index(block.activation), biases
