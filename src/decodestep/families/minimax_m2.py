"""MiniMax M2: norms of the rows of queries and keys, a rope of half a head, and a mixture of experts in every layer."""

from __future__ import annotations

from decodestep.families import llama
from decodestep.families.common.config_json import Keys, RopeParameters
from decodestep.families.common.description import Architecture, Family, Layers, ModelType
from decodestep.families.common.experts import ExpertKeys, Gating, every_layer, file_experts
from decodestep.families.common.grouped import GroupedFile, GroupedKeys
from decodestep.families.common.refusals import tied_output
from decodestep.ops.expert_router.arguments import RouterRule

_LAYERS = Layers(query_key_norm="row")
_DEFAULTS = llama.DEFAULTS | {
    "vocab_size": 200064,
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "num_hidden_layers": 62,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 196608,
    "rope_theta": 5000000.0,
    "num_experts_per_tok": 8,
    "num_local_experts": 256,
}
_SIGMOID = Gating("sigmoid", normalise=True, scale=1.0)  # whatever the keys of a file say


def _rope_dim(keys: Keys, head_dim: int) -> int:
    """By its part of a head, or the older rotary_dim."""
    part = RopeParameters(keys).part
    if part is None:
        return keys.size("rotary_dim", head_dim, most=head_dim)
    return int(head_dim * part)


def _rule(keys: Keys) -> RouterRule:
    return RouterRule(keys.size("num_experts_per_tok"), "sigmoid", normalise=True)


_GGUF = Architecture(
    "minimax-m2",
    GroupedFile(partial_rope=True),
    _LAYERS,
    rope_half_split=True,
    experts=file_experts(lambda keys, common: _SIGMOID),
    output_bias=False,
    refused=tied_output,
)
FAMILY = Family(
    types=(
        ModelType(
            "minimax_m2",
            written_as=_GGUF,
            attention=GroupedKeys(rope_dim=_rope_dim),
            defaults=_DEFAULTS,
            layers=_LAYERS,
            aliases={"num_experts": "num_local_experts"},
            experts=ExpertKeys(
                every_layer,
                _rule,
                count="num_local_experts",
                shared=None,
                corrected=True,
                width="intermediate_size",
            ),
            tensors={
                "router": "block_sparse_moe.gate.weight",
                "correction": "block_sparse_moe.e_score_correction_bias",
                "experts_gate": "block_sparse_moe.experts.{e}.w1.weight",
                "experts_up": "block_sparse_moe.experts.{e}.w3.weight",
                "experts_down": "block_sparse_moe.experts.{e}.w2.weight",
            },
            pre_tokenizer="minimax-m2",
        ),
    ),
    gguf=_GGUF,
)
