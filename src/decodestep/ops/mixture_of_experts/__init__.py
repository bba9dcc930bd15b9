"""mixture_of_experts: a feed-forward block in which each token uses a few of many experts."""

from __future__ import annotations

from typing import Any

import numpy as np

from decodestep._base import arrays, devices
from decodestep._base.arrays import Array, ArrayT
from decodestep._base.checks import Phrase, require, require_dtype, require_shape, require_within
from decodestep._base.dispatch import choose
from decodestep._base.profiling import run
from decodestep.ops.mixture_of_experts import cpu, reference
from decodestep.weights.device_rows import DeviceRows
from decodestep.weights.feed_forward import FeedForward as FeedForward

OP = "mixture_of_experts"


def mixture_of_experts(
    x: ArrayT,
    experts: Array | list[list[int]],
    weights: Array,
    routed: FeedForward,
    shared: FeedForward | None = None,
    *,
    backend: str = "auto",
) -> ArrayT:
    """Runs every token through its experts and adds up their outputs.

        for every token t:
            y[t] = 0
            for j in the order of ascending experts[t, j]:
                e = experts[t, j]
                y[t] += weights[t, j] * swiglu(x[t] @ gate_e, x[t] @ up_e) @ down_e
            y[t] += swiglu(x[t] @ shared.gate, x[t] @ shared.up) @ shared.down
        and max(x[t] @ up, 0)^2 in place of swiglu for a block without a gate, or what a block's `activation` says; its biases
        are added to its products

    Args:
        x: (T, He), float32 or float64, any strides.
        experts: (T, K) integers in [0, E), as `expert_router` returns them; an expert that a row names twice counts twice.
        weights: (T, K), of x's dtype.
        routed: a `FeedForward` of E blocks.
        shared: a `FeedForward` of one block for every token, or None. Products with panels quantise x and swiglu(...) if the
            weight's format requires it, as in `linear`.
        backend: "auto", "cpu", "triton" or "reference". "triton" takes tensors on a GPU, float32, and weights that are
            `DeviceRows` there, without biases and clamped SiLU; the others take none of these. "cpu" serves float32. With
            `LinearPanels` of F and He that are multiples of 32 it is one call of the core, which reads the panels of each
            expert that is used once, whatever the number of tokens; with other weights it multiplies expert by expert.

    Returns:
        y, a new array (T, He) of x's dtype and kind.

    Raises:
        ValueError: for a dtype, shape or expert outside the rules.

    Notes:
        Sums are taken in x's dtype, those over experts in the order above, each term weights * outputs fused into the sum where
        the processor can. NaN stays in its token. Except with "reference", a token's bits depend neither on the other tokens
        nor on the thread count.

    Source:
        Dai et al., DeepSeekMoE, 2024; Shazeer, GLU Variants Improve Transformer, 2020.
    """
    if devices.goes_to_triton(backend, x):
        return _on_device(x, experts, weights, routed, shared, backend)
    tokens = arrays.view(OP, "x", x)
    chosen = _check(tokens, experts, routed, shared)
    for name, block in (("routed", routed), ("shared", shared)):
        there = block is not None and any(isinstance(weight, DeviceRows) for weight in block.weights)
        require(not there, OP, name, "of weights on the CPU for this backend", Phrase("DeviceRows"))
    factors = arrays.view(OP, "weights", weights)
    require_dtype(OP, "weights", factors, (tokens.dtype,))
    require_shape(OP, "weights", factors, chosen.shape)
    backend = choose(OP, backend, {"cpu": None if tokens.dtype == np.float32 else "needs float32", "reference": None})
    mix = (cpu if backend == "cpu" else reference).mixture
    result: ArrayT = arrays.like(x, run(OP, backend, mix, tokens, chosen, factors, routed, shared))
    return result


def _check(tokens: np.ndarray, experts: object, routed: FeedForward, shared: FeedForward | None) -> np.ndarray:
    """The experts as int64; ValueError for arguments outside the rules."""
    require_dtype(OP, "x", tokens, (np.float32, np.float64))
    require(isinstance(routed, FeedForward), OP, "routed", "a FeedForward", routed)
    require(shared is None or isinstance(shared, FeedForward), OP, "shared", "a FeedForward or None", shared)
    require(tokens.ndim == 2 and tokens.shape[1] == routed.hidden, OP, "x", f"of shape (T, {routed.hidden})", tokens)
    if shared is not None:
        ok = shared.count == 1 and shared.hidden == routed.hidden
        require(ok, OP, "shared", f"one block of {routed.hidden} inputs", Phrase(f"{shared.count} of {shared.hidden}"))
    chosen = arrays.integers(OP, "experts", experts, rank=2)
    require(len(chosen) == len(tokens), OP, "experts", f"of shape ({len(tokens)}, K)", chosen)
    require_within(OP, "experts", chosen, routed.count)
    return chosen


def _on_device(x: Any, experts: Any, weights: Any, routed: FeedForward, shared: FeedForward | None, backend: str) -> Any:
    given = [block for block in (routed, shared) if isinstance(block, FeedForward)]
    obstacle = "has no biases" if any(block.has_biases for block in given) else None
    if any(block.activation == "clamped_silu" for block in given):
        obstacle = "has no clamped SiLU"
    if arrays.is_torch(x) and str(x.dtype) == "torch.float64":
        obstacle = "has no float64"
    devices.choose_triton(OP, backend, x, obstacle)
    from decodestep.ops.mixture_of_experts import triton

    chosen = _check(devices.outline(OP, "x", x, x.device), devices.to_host(experts), routed, shared)
    for name, block in (("routed", routed), ("shared", shared)):
        for weight in () if block is None else block.weights:
            there = isinstance(weight, DeviceRows) and weight.values.device == x.device
            got = f"a {type(weight).__name__}" + (f" on {weight.values.device}" if isinstance(weight, DeviceRows) else "")
            require(there, OP, name, f"of DeviceRows on {x.device} (FeedForward.to)", Phrase(got))
    factors = devices.outline(OP, "weights", weights, x.device)
    require_dtype(OP, "weights", factors, (np.float32,))
    require_shape(OP, "weights", factors, chosen.shape)
    return devices.run_there(OP, x.device, triton.mixture, x.detach(), chosen, weights.detach(), routed, shared)
