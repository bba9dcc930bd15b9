"""The call into the native core."""

from __future__ import annotations

from typing import Any

import numpy as np

from decodestep import _native
from decodestep._base import arrays
from decodestep._base.threads import threads
from decodestep.ops.expert_router.arguments import GROUP_SCORES, SCORES, RouterRule


def route(logits: np.ndarray, rule: RouterRule, bias: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    shape = (len(logits), rule.used)
    experts, weights = np.empty(shape, np.int64), np.empty(shape, np.float32)
    _native.expert_router(
        logits=arrays.contiguous_rows(logits),
        bias=None if bias is None else arrays.contiguous(bias),
        experts=experts,
        weights=weights,
        threads=threads(),
        **native_rule(rule),
    )
    return experts, weights


def native_rule(rule: RouterRule) -> dict[str, Any]:
    """The rule as arguments of the core."""
    return {
        "used": rule.used,
        "scores": SCORES.index(rule.scores),
        "groups": rule.groups,
        "kept_groups": rule.kept_groups,
        "group_score": GROUP_SCORES.index(rule.group_score),
        "normalise": rule.normalise,
        "scale": rule.scale,
        "eps": rule.eps,
    }
