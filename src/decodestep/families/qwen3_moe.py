"""Qwen3 with a mixture of experts in some layers or all."""

from __future__ import annotations

from decodestep.families import qwen2, qwen3
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Architecture, Family, ModelType
from decodestep.families.common.experts import ExpertKeys, Gating, file_experts
from decodestep.families.common.grouped import ATTENTION_BIAS, GroupedFile, GroupedKeys, same_windows
from decodestep.families.common.limits import MAX_EXPERTS, MAX_LAYERS
from decodestep.families.common.refusals import dense_layers
from decodestep.ops.expert_router.arguments import RouterRule

_DEFAULTS = qwen2.DEFAULTS | {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_key_value_heads": 4,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
    "num_experts": 128,
    "norm_topk_prob": False,
}
# Whatever the keys of a file say, which llama.cpp does not read here: weights that add up to 1.
_SOFTMAX = Gating("softmax", normalise=True, scale=1.0)


def _windows(keys: Keys, layers: int) -> tuple[int, ...]:
    return same_windows(keys, layers) if keys.flag("use_sliding_window") else ()


def sparse(keys: Keys, layers: int) -> tuple[bool, ...]:
    count = keys.size("num_experts", least=0, most=MAX_EXPERTS)
    step, dense = keys.size("decoder_sparse_step", most=MAX_LAYERS), keys.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise keys.refusal("mlp_only_layers must be a list")
    return tuple(count > 0 and i not in dense and (i + 1) % step == 0 for i in range(layers))


def _rule(keys: Keys) -> RouterRule:
    return RouterRule(keys.size("num_experts_per_tok"), "softmax", normalise=keys.flag("norm_topk_prob"))


_GGUF = Architecture(
    "qwen3moe",
    GroupedFile(),
    qwen3.LAYERS,
    rope_half_split=True,
    experts=file_experts(lambda keys, common: _SOFTMAX),
    output_bias=False,
    refused=dense_layers,
)
FAMILY = Family(
    types=(
        ModelType(
            "qwen3_moe",
            written_as=_GGUF,
            attention=GroupedKeys(bias_keys=ATTENTION_BIAS, windows=_windows),
            defaults=_DEFAULTS,
            layers=qwen3.LAYERS,
            aliases={"num_local_experts": "num_experts"},  # which is what it saves
            experts=ExpertKeys(sparse, _rule, count="num_experts", shared=None, corrected=False),
        ),
    ),
    gguf=_GGUF,
)
