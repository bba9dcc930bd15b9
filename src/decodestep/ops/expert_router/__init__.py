"""expert_router: which experts of a mixture a token goes to, and with which weights."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from decodestep._base import arrays
from decodestep._base.arrays import Array
from decodestep._base.checks import require, require_dtype
from decodestep._base.dispatch import choose
from decodestep._base.profiling import run
from decodestep.ops.expert_router import cpu, reference
from decodestep.ops.expert_router.arguments import OP
from decodestep.ops.expert_router.arguments import RouterRule as RouterRule


class Routes(NamedTuple):
    """experts: (T, K) int64. weights: (T, K) of the logits' dtype. Both of the logits' kind."""

    experts: Array
    weights: Array


def expert_router(
    logits: Array,
    used: int,
    *,
    scores: str = "softmax",
    bias: Array | None = None,
    groups: int = 1,
    kept_groups: int = 1,
    group_score: str = "maximum",
    normalise: bool = False,
    scale: float = 1.0,
    eps: float = 1e-20,
    backend: str = "auto",
) -> Routes:
    """Chooses K = `used` of E experts for every token, and their weights.

        for every token t:
            score = softmax(logits[t]) or sigmoid(logits[t])
            choice = score + bias
            kept = the `kept_groups` of `groups` runs of E / groups neighbours with the largest group score: that is the maximum
                of choice in the group, or the sum of its two largest
            experts[t] = the K experts of these groups with the largest choice, the largest first
            w = score[experts[t]];  if normalise: w /= sum(w) + eps
            weights[t] = w * scale

    Ties: of equal choices the lowest expert, of equal group scores the lowest group. NaN: a choice or a group score that is NaN
    counts as minus infinity; the weight of an expert keeps the NaN of its score, and with `normalise` gives it to its token.
    A token's bits depend on its own logits alone. "cpu" computes in float32.

    Args:
        logits: (T, E), float32 or float64, any strides; E >= 1.
        used: K, in [1, kept_groups * E / groups].
        scores: "softmax", over all E, or "sigmoid".
        bias: float32 (E,), finite, for the choice alone; None for zeros.
        groups: a divisor of E.
        kept_groups: in [1, groups].
        group_score: "maximum", or "top_two" for groups of two experts or more.
        normalise: whether a token's weights are divided by their sum.
        scale: finite, their factor afterwards.
        eps: finite, >= 0, added to that sum.
        backend: "auto", "cpu" or "reference"; "cpu" serves float32.

    Returns:
        `Routes`: experts (T, K) int64 and weights (T, K) of the logits' dtype; of the logits' kind.

    Raises:
        ValueError: for a dtype, shape, or number outside the rules.

    Source:
        DeepSeek-V2 (2024), section 2.1.2, and DeepSeek-V3 (2024), section 2.1.2, as transformers 5.23 computes them:
        DeepseekV2TopkRouter is softmax with "maximum", DeepseekV3TopkRouter sigmoid with a bias and "top_two".
    """
    values = arrays.view(OP, "logits", logits)
    require_dtype(OP, "logits", values, (np.float32, np.float64))
    require(values.ndim == 2 and values.shape[1] > 0, OP, "logits", "of shape (T, E) with E > 0", values)
    experts = values.shape[1]
    rule = RouterRule(used, scores, groups, kept_groups, group_score, normalise, scale, eps)
    rule.check(experts)
    offsets = arrays.optional_view(OP, "bias", bias)
    if offsets is not None:
        require_dtype(OP, "bias", offsets, (np.float32,))
        finite = offsets.shape == (experts,) and bool(np.isfinite(offsets).all())
        require(finite, OP, "bias", f"{experts} finite numbers", offsets)
    backend = choose(OP, backend, {"cpu": None if values.dtype == np.float32 else "needs float32", "reference": None})
    chosen, weights = run(OP, backend, (cpu if backend == "cpu" else reference).route, values, rule, offsets)
    return Routes(arrays.like(logits, chosen), arrays.like(logits, weights))
