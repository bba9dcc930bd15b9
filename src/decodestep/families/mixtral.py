"""Mixtral: Mistral's layers with a mixture of experts. As files they are Llama's."""

from __future__ import annotations

from decodestep.families import llama
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Family, ModelType
from decodestep.families.common.experts import ExpertKeys, every_layer
from decodestep.families.common.grouped import GroupedKeys, same_windows
from decodestep.ops.expert_router.arguments import RouterRule

_DEFAULTS = llama.DEFAULTS | {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
}


def _rule(keys: Keys) -> RouterRule:
    return RouterRule(keys.size("num_experts_per_tok"), "softmax", normalise=True)


FAMILY = Family(
    types=(
        ModelType(
            "mixtral",
            written_as=llama.GGUF,
            attention=GroupedKeys(windows=same_windows),
            defaults=_DEFAULTS,
            aliases={"num_experts": "num_local_experts"},
            experts=ExpertKeys(
                every_layer,
                _rule,
                count="num_local_experts",
                shared=None,
                corrected=False,
                width="intermediate_size",
            ),
            tensors={
                "router": "block_sparse_moe.gate.weight",
                "experts_gate": "block_sparse_moe.experts.{e}.w1.weight",
                "experts_up": "block_sparse_moe.experts.{e}.w3.weight",
                "experts_down": "block_sparse_moe.experts.{e}.w2.weight",
            },
        ),
    ),
)
