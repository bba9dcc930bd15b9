"""GLM-4.7-Flash: DeepSeek V3's layers, of which mlp_layer_types says which have experts. As files they are DeepSeek's."""

from __future__ import annotations

from decodestep.families import deepseek2
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Family, ModelType
from decodestep.families.common.experts import ExpertKeys
from decodestep.families.common.latent import LatentKeys

_DEFAULTS = deepseek2.LATENT_DEFAULTS | {
    "vocab_size": 154880,
    "hidden_size": 2048,
    "intermediate_size": 10240,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 47,
    "num_attention_heads": 20,
    "n_shared_experts": 1,
    "n_routed_experts": 64,
    "routed_scaling_factor": 1.8,
    "q_lora_rank": 768,
    "v_head_dim": 256,
    "qk_nope_head_dim": 192,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "max_position_embeddings": 202752,
    "rms_norm_eps": 1e-5,
}


def _sparse(keys: Keys, layers: int) -> tuple[bool, ...]:
    kinds = keys.get("mlp_layer_types") or ["dense"] + ["sparse"] * (layers - 1)
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in ("dense", "sparse") for kind in kinds):
        raise keys.refusal(f"mlp_layer_types must have 'dense' or 'sparse' for each of {layers} layers")
    return tuple(kind == "sparse" for kind in kinds)


FAMILY = Family(
    types=(
        ModelType(
            "glm4_moe_lite",
            written_as=deepseek2.GGUF,
            attention=LatentKeys(),
            defaults=_DEFAULTS,
            aliases={"num_local_experts": "n_routed_experts", "head_dim": "qk_rope_head_dim"},
            experts=ExpertKeys(_sparse, deepseek2.v3_rule, count="n_routed_experts", shared="n_shared_experts", corrected=True),
            next_token_layers=True,
            pre_tokenizer="glm4",
        ),
    ),
)
