"""expert_router by its definition."""

from __future__ import annotations

import numpy as np

from decodestep.ops.expert_router.arguments import RouterRule


def route(logits: np.ndarray, rule: RouterRule, bias: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    tokens, experts = logits.shape
    dtype = logits.dtype
    with np.errstate(all="ignore"):
        if rule.scores == "softmax":
            raised = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
            score = raised / raised.sum(axis=1, keepdims=True)
        else:
            score = 1 / (1 + np.exp(-logits))
        choice = score if bias is None else score + bias.astype(dtype)
        choice = np.where(np.isnan(choice), -np.inf, choice)
        grouped = np.sort(choice.reshape(tokens, rule.groups, experts // rule.groups), axis=2)
        group = grouped[:, :, -1] if rule.group_score == "maximum" else grouped[:, :, -1] + grouped[:, :, -2]
        kept = np.argsort(-group, axis=1, kind="stable")[:, : rule.kept_groups]
        is_kept = np.zeros((tokens, rule.groups), bool)
        np.put_along_axis(is_kept, kept, True, axis=1)
        is_kept = np.repeat(is_kept, experts // rule.groups, axis=1)
        # Those of other groups come last, also after choices of minus infinity.
        order = np.lexsort((np.broadcast_to(np.arange(experts), choice.shape), -choice, ~is_kept), axis=1)
        chosen = order[:, : rule.used]
        weights = np.take_along_axis(score, chosen, axis=1)
        if rule.normalise:
            weights = weights / (weights.sum(axis=1, keepdims=True) + dtype.type(rule.eps))
        return chosen.astype(np.int64), weights * dtype.type(rule.scale)
