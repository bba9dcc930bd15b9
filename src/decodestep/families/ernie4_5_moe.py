"""ERNIE 4.5 with a mixture of experts: a bias for their choice after softmax, and a shared one."""

from __future__ import annotations

from decodestep.decoding.config import Config
from decodestep.families import ernie4_5
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Architecture, Family, Fields, ModelType
from decodestep.families.common.experts import ExpertKeys, Gating, file_experts
from decodestep.families.common.grouped import GroupedFile, GroupedKeys
from decodestep.families.common.limits import MAX_LAYERS
from decodestep.families.common.refusals import dense_layers, first_of
from decodestep.ops.expert_router.arguments import RouterRule

_DEFAULTS = {key: value for key, value in ernie4_5.DEFAULTS.items() if key != "head_dim"} | {
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_hidden_layers": 28,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 1536,
    "moe_k": 6,
    "moe_num_experts": 64,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": -1,
    "moe_layer_interval": 1,
}
_SOFTMAX = Gating("softmax", normalise=True, scale=1.0)  # whatever the keys of a file say


def _check(keys: Keys, common: Fields) -> None:
    if keys.flag("use_bias"):
        raise keys.refusal("use_bias, with which the logits have a bias too, is not supported for a mixture of experts")


def _sparse(keys: Keys, layers: int) -> tuple[bool, ...]:
    first, step = keys.size("moe_layer_start_index", least=0, most=MAX_LAYERS), keys.size("moe_layer_interval", most=MAX_LAYERS)
    last = keys.size("moe_layer_end_index", least=-1, most=MAX_LAYERS)
    end = layers if last < 0 else last + 1
    return tuple((i + 1) % step == 0 and first <= i < end for i in range(layers))


def _rule(keys: Keys) -> RouterRule:
    return RouterRule(keys.size("moe_k"), "softmax", normalise=True)


def _written(config: Config) -> Fields:
    experts = config.experts
    if experts is None:
        return {}
    first, second = ([i for i, sparse in enumerate(experts.layers) if sparse] * 2)[:2]
    return {
        "leading_dense_block_count": first,
        "interleave_moe_layer_step": max(1, second - first),
        "expert_shared_feed_forward_length": experts.shared,
    }


def _dense_between(config: Config, vectors: object) -> str | None:
    experts = config.experts
    apart = experts is not None and not all(experts.layers[experts.layers.index(True) :])
    return "dense layers after sparse ones" if apart else None


_GGUF = Architecture(
    "ernie4_5-moe",
    GroupedFile(),
    experts=file_experts(lambda keys, common: _SOFTMAX),
    written=_written,
    refused=first_of(dense_layers, _dense_between),
)
FAMILY = Family(
    types=(
        ModelType(
            "ernie4_5_moe",
            written_as=_GGUF,
            attention=GroupedKeys(half_split=False),
            defaults=_DEFAULTS,
            aliases={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
            experts=ExpertKeys(_sparse, _rule, count="moe_num_experts", shared="moe_num_shared_experts", corrected=True),
            next_token_layers=True,
            check=_check,
            tensors={"correction": "mlp.moe_statics.e_score_correction_bias"},
            pre_tokenizer="default",
        ),
    ),
    gguf=_GGUF,
)
