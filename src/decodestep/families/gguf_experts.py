"""A mixture of experts from a GGUF file's metadata."""

from __future__ import annotations

from typing import Any, NamedTuple

from decodestep.decoding.config import Experts
from decodestep.families import names
from decodestep.families.gguf_keys import GgufKeys
from decodestep.families.limits import MAX_EXPERTS, MAX_LAYERS
from decodestep.ops.expert_router.arguments import RouterRule

SCORES = {1: "softmax", 2: "sigmoid"}  # by expert_gating_func


class Gating(NamedTuple):
    """How the scores of the experts become their weights."""

    scores: str
    normalise: bool
    scale: float


SOFTMAX = Gating("softmax", normalise=True, scale=1.0)  # weights that add up to 1


def _stored_gating(keys: GgufKeys, common: dict[str, Any]) -> Gating:
    """What the file's keys say."""
    # Files older than the key are DeepSeek-V2's; those of GLM-4.7-Flash without it are recognised by their sizes.
    lite_glm = common["vocab_size"] == 154880 and common["layers"] in (47, 48)
    function = keys.size("expert_gating_func", 0, least=0) or (2 if lite_glm else 1)  # 0 is as if it were missing
    if function not in SCORES:
        raise keys.refusal(f"expert_gating_func {function} is not supported (1, softmax, and 2, sigmoid, are)")
    scale = keys.number("expert_weights_scale", 1.0, least=0.0, most=1e6) or 1.0
    return Gating(SCORES[function], keys.flag("expert_weights_norm"), scale)


def experts_of(keys: GgufKeys, common: dict[str, Any], gating: Gating | None = None) -> Experts | None:
    """The mixture of experts; None: all layers are dense. gating: the architecture's; None for what the file's keys say."""
    count, layers = keys.size("expert_count", 0, least=0, most=MAX_EXPERTS), common["layers"]
    dense = keys.size("leading_dense_block_count", 0, least=0, most=MAX_LAYERS)
    if not count or dense >= layers:
        return None
    gating = gating or _stored_gating(keys, common)
    width = keys.size_of_layers("expert_feed_forward_length")
    groups = keys.size("expert_group_count", 1, least=0, most=MAX_EXPERTS) or 1
    rule = RouterRule(
        used=keys.size_of_layers("expert_used_count"),
        scores=gating.scores,
        groups=groups,
        kept_groups=(keys.size("expert_group_used_count", groups, least=0) or groups) if groups > 1 else 1,
        group_score="maximum" if groups == 1 or gating.scores == "softmax" else "top_two",
        normalise=gating.normalise,
        scale=gating.scale,
    )
    return Experts(
        count,
        width,
        shared=width * keys.size("expert_shared_count", 0, least=0, most=MAX_EXPERTS),
        rule=keys.router(rule, count),
        corrected=any(names.GGUF["correction"].format(i=i) in keys.file.tensors for i in range(dense, layers)),
        layers=tuple(i >= dense for i in range(layers)),
    )
