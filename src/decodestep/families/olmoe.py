"""OLMoE: norms of the rows of queries and keys, and experts in every layer, whose weights may add up to less than 1."""

from __future__ import annotations

from decodestep.families import llama
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Architecture, Family, Fields, Layers, ModelType
from decodestep.families.common.experts import ExpertKeys, Gating, every_layer, file_experts
from decodestep.families.common.grouped import ATTENTION_BIAS, GroupedFile, GroupedKeys
from decodestep.families.common.refusals import few_key_heads, first_of, tied_output, wide_heads
from decodestep.ops.expert_router.arguments import RouterRule

_LAYERS = Layers(query_key_norm="row")
_DEFAULTS = llama.DEFAULTS | {
    "vocab_size": 50304,
    "hidden_size": 2048,
    "intermediate_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "num_experts_per_tok": 8,
    "num_experts": 64,
    "norm_topk_prob": False,
}
_SOFTMAX = Gating("softmax", normalise=False, scale=1.0)  # whatever the keys of a file say


def _rule(keys: Keys) -> RouterRule:
    return RouterRule(keys.size("num_experts_per_tok"), "softmax", normalise=keys.flag("norm_topk_prob"))


def _check(keys: Keys, common: Fields) -> None:
    if keys.get("clip_qkv") is not None:
        raise keys.refusal("clip_qkv, bounds of queries, keys and values, is not supported")


_GGUF = Architecture(
    "olmoe",
    GroupedFile(),
    _LAYERS,
    rope_half_split=True,
    experts=file_experts(lambda keys, common: _SOFTMAX),
    output_bias=False,
    refused=first_of(wide_heads, few_key_heads, tied_output),
)
FAMILY = Family(
    types=(
        ModelType(
            "olmoe",
            written_as=_GGUF,
            attention=GroupedKeys(bias_keys=ATTENTION_BIAS),
            defaults=_DEFAULTS,
            layers=_LAYERS,
            aliases={"num_local_experts": "num_experts"},
            experts=ExpertKeys(
                every_layer,
                _rule,
                count="num_experts",
                shared=None,
                corrected=False,
                width="intermediate_size",
            ),
            check=_check,
            pre_tokenizer="olmo",
        ),
    ),
    gguf=_GGUF,
)
