"""Qwen3-Next: linear attention by the gated delta rule in three layers of four, attention with a gate and a rope of a part of a
head in the fourth; a mixture of experts with a shared expert that has a gate.

Norm weights are stored as differences from 1. The layer for next-token prediction attends, and has names of its own.
"""

from __future__ import annotations

from typing import Any

from decodestep.decoding.config import Config, Mixer
from decodestep.families import llama
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Architecture, Family, Fields, Layers, ModelType
from decodestep.families.common.experts import ExpertKeys, Gating, file_experts
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.grouped import GroupedFile, GroupedKeys, partial_rope
from decodestep.families.common.limits import MAX_LAYERS
from decodestep.families.common.mixers import file_delta, file_mixers, folder_delta, mixers_by_interval, mixers_by_type
from decodestep.families.common.refusals import dense_layers, first_of
from decodestep.families.qwen3_moe import sparse
from decodestep.ops.expert_router.arguments import RouterRule

LAYERS = Layers(query_key_norm="head")
DEFAULTS: dict[str, Any] = llama.DEFAULTS | {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
MIXTURE: dict[str, Any] = {
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
ATTENTION = GroupedKeys(rope_dim=partial_rope(0.25), gated=True)
FILE_ATTENTION = GroupedFile(partial_rope=True, gated=True)
NEXT_TOKEN_NAMES = {
    "mtp.layers.0.": "",
    "mtp.fc.": "eh_proj.",
    "mtp.norm.": "shared_head.norm.",
    "mtp.pre_fc_norm_embedding.": "enorm.",
    "mtp.pre_fc_norm_hidden.": "hnorm.",
}
SHARED_EXPERT = {
    "shared_factor": "mlp.shared_expert_gate.weight",
    **{f"shared_{part}": f"mlp.shared_expert.{part}_proj.weight" for part in ("gate", "up", "down")},
    # Published folders of Qwen3.5 have the experts of a layer together.
    "experts_gate_up": "mlp.experts.gate_up_proj",
    "experts_down_together": "mlp.experts.down_proj",
}
# Without another meaning of attn_qkv.
FILE_TENSORS = {"ffn_norm": "post_attention_norm.weight", "delta_qkv": "attn_qkv.weight"}
# Whatever the keys of a file say, as llama.cpp does not read them here: weights that add up to 1.
SOFTMAX = Gating("softmax", normalise=True, scale=1.0)
FILE_EXPERTS = file_experts(lambda keys, common: SOFTMAX, own_shared=True, shared_gated=True)


def _by_interval(keys: Keys, layers: int) -> tuple[Mixer, ...]:
    return mixers_by_interval("delta", keys.size("full_attention_interval", most=MAX_LAYERS), layers)


MIXERS = mixers_by_type("delta", _by_interval)


def more(keys: Keys, common: Fields) -> Fields:
    return {"delta": folder_delta(keys)} if common["mixers"] else {}


def check(keys: Keys, common: Fields) -> None:
    if keys.flag("attention_bias"):
        raise keys.refusal(f"attention_bias is not supported for {keys.model_type}")


def file_more(*, tiled: bool) -> Any:
    def read(keys: GgufKeys, common: Fields) -> Fields:
        return {"delta": file_delta(keys, tiled=tiled)} if common["mixers"] else {}

    return read


def written(config: Config) -> Fields:
    """Which layers attend, also for readers that know but an interval."""
    recurrent = [mixer != "attention" for mixer in config.mixers]
    flags = recurrent + [False] * config.next_token_layers
    made: Fields = {"attention.recurrent_layers": flags} if recurrent else {}
    interval = recurrent.index(False) + 1 if recurrent else 1
    if config.mixers in ((), mixers_by_interval("delta", interval, config.layers)):
        made["full_attention_interval"] = interval
    if config.experts is not None:
        made["expert_shared_feed_forward_length"] = config.experts.shared
    return made


def values_as_wide_as_keys(config: Config, vectors: object) -> str | None:
    d = config.delta
    if d is None or d.key_dim == d.value_dim:
        return None
    return f"value heads of {d.value_dim} and key heads of {d.key_dim} values in linear attention"


def delta_layers(config: Config, vectors: object) -> str | None:
    return None if config.mixers else "attention in all layers"


def _rule(keys: Keys) -> RouterRule:
    return RouterRule(keys.size("num_experts_per_tok"), "softmax", normalise=keys.flag("norm_topk_prob"))


_GGUF = Architecture(
    "qwen3next",
    FILE_ATTENTION,
    LAYERS,
    rope_half_split=True,
    tensors=FILE_TENSORS | {"delta_beta_alpha": "ssm_ba.weight", "delta_qkvz": "ssm_in.weight"},
    mixers=file_mixers("delta"),
    experts=FILE_EXPERTS,
    more=file_more(tiled=False),
    output_bias=False,
    refused=first_of(dense_layers, values_as_wide_as_keys, delta_layers),
    written=written,
)
FAMILY = Family(
    types=(
        ModelType(
            "qwen3_next",
            written_as=_GGUF,
            attention=ATTENTION,
            defaults=DEFAULTS | MIXTURE | {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": None},
            layers=LAYERS,
            mixers=MIXERS,
            aliases={"num_local_experts": "num_experts"},
            experts=ExpertKeys(
                sparse,
                _rule,
                count="num_experts",
                shared=None,
                corrected=False,
                shared_width="shared_expert_intermediate_size",
                shared_gated=True,
            ),
            next_token_layers=True,
            next_token_names=NEXT_TOKEN_NAMES,
            more=more,
            check=check,
            tensors=SHARED_EXPERT
            | {
                "delta_qkvz": "linear_attn.in_proj_qkvz.weight",
                "delta_beta_alpha": "linear_attn.in_proj_ba.weight",
            },
            norm_shift=1.0,
        ),
    ),
    gguf=_GGUF,
)
