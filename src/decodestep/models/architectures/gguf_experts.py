"""A mixture of experts from a GGUF file's metadata."""

from __future__ import annotations

from typing import Any

from decodestep.models.architectures import names
from decodestep.models.architectures.gguf_keys import GgufKeys
from decodestep.models.architectures.limits import MAX_EXPERTS, MAX_LAYERS, MAX_WIDTH
from decodestep.models.config import Experts
from decodestep.ops.expert_router.arguments import RouterRule

_SCORES = {1: "softmax", 2: "sigmoid"}  # by expert_gating_func


def experts_of(keys: GgufKeys, common: dict[str, Any], *, fixed: bool = False) -> Experts | None:
    """The mixture of experts; None: all layers are dense. fixed: whether the architecture's weights are a softmax that adds up
    to 1, whatever the file says, as in llama.cpp."""
    count, layers = keys.size("expert_count", 0, least=0, most=MAX_EXPERTS), common["layers"]
    dense = keys.size("leading_dense_block_count", 0, least=0, most=MAX_LAYERS)
    if not count or dense >= layers:
        return None
    # Files older than the key are DeepSeek-V2's; those of GLM-4.7-Flash without it are recognised by their sizes.
    lite_glm = common["vocab_size"] == 154880 and layers in (47, 48)
    gating = 1 if fixed else keys.size("expert_gating_func", 2 if lite_glm else 1, least=0) or 1
    if gating not in _SCORES:
        raise keys.refuse(f"expert_gating_func {gating} is not supported (1, softmax, and 2, sigmoid, are)")
    width = keys.size("expert_feed_forward_length")
    groups = keys.size("expert_group_count", 1, least=0, most=MAX_EXPERTS) or 1
    rule = RouterRule(
        used=keys.size("expert_used_count", most=MAX_WIDTH),
        scores=_SCORES[gating],
        groups=groups,
        kept_groups=(keys.size("expert_group_used_count", groups, least=0) or groups) if groups > 1 else 1,
        group_score="maximum" if groups == 1 or _SCORES[gating] == "softmax" else "top_two",
        normalise=fixed or keys.flag("expert_weights_norm"),
        scale=1.0 if fixed else keys.number("expert_weights_scale", 1.0, least=0.0, most=1e6) or 1.0,
    )
    return Experts(
        count,
        width,
        shared=width * keys.size("expert_shared_count", 0, least=0, most=MAX_EXPERTS),
        rule=rule,
        corrected=names.GGUF["correction"].format(i=dense) in keys.file.tensors,
        layers=tuple(i >= dense for i in range(layers)),
    )
