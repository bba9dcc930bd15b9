"""Qwen3.5 with a mixture of experts in all layers, as Qwen3-Next has them."""

from __future__ import annotations

from dataclasses import replace

from decodestep.families import qwen3_5, qwen3_next
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Family, ModelType, Wrapper
from decodestep.families.common.experts import ExpertKeys, every_layer
from decodestep.ops.expert_router.arguments import RouterRule

_DEFAULTS = qwen3_5.DEFAULTS | {
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    **qwen3_next.MIXTURE,
    "num_experts": 256,
    "num_experts_per_tok": 8,
}


def _rule(keys: Keys) -> RouterRule:
    return RouterRule(keys.size("num_experts_per_tok"), "softmax", normalise=True)


_GGUF = replace(qwen3_5.GGUF, name="qwen35moe", experts=qwen3_next.FILE_EXPERTS)
FAMILY = Family(
    types=(
        ModelType(
            "qwen3_5_moe_text",
            written_as=_GGUF,
            attention=qwen3_next.ATTENTION,
            defaults=_DEFAULTS,
            layers=qwen3_next.LAYERS,
            mixers=qwen3_next.MIXERS,
            feed_forward="moe_intermediate_size",
            experts=ExpertKeys(
                every_layer,
                _rule,
                count="num_experts",
                shared=None,
                corrected=False,
                shared_width="shared_expert_intermediate_size",
                shared_gated=True,
            ),
            aliases={"num_local_experts": "num_experts"},
            next_token_layers=True,
            next_token_names=qwen3_next.NEXT_TOKEN_NAMES,
            more=qwen3_next.more,
            check=qwen3_next.check,
            tensors=qwen3_next.SHARED_EXPERT | qwen3_5.TENSORS,
            prefixes=qwen3_5.PREFIXES,
            norm_shift=1.0,
        ),
    ),
    gguf=_GGUF,
    wrappers=(Wrapper("qwen3_5_moe", unsaid="qwen3_5_moe_text", prefixes=qwen3_5.WRAPPED),),
)
