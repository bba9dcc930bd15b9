"""GLM-4.5, 4.6 and 4.7: a rope of half a head, perhaps norms of heads, and DeepSeek V3's mixture of experts."""

from __future__ import annotations

from decodestep.decoding.config import Config
from decodestep.families import deepseek2, glm4, llama
from decodestep.families.common.description import Architecture, Family, Fields, Layers, ModelType
from decodestep.families.common.experts import ExpertKeys, file_experts, stored_gating
from decodestep.families.common.grouped import QKV, GroupedFile, GroupedKeys, partial_rope

_LAYERS = Layers(query_key_norm="head")
_DEFAULTS = llama.DEFAULTS | {
    "vocab_size": 151552,
    "intermediate_size": 10944,
    "num_hidden_layers": 46,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "n_routed_experts": 128,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "use_qk_norm": False,
}


def written(config: Config) -> Fields:
    experts = config.experts
    return {"leading_dense_block_count": experts.layers.index(True) if experts else config.layers}


_GGUF = Architecture(
    "glm4moe",
    GroupedFile(partial_rope=True, optional_norms=True),
    _LAYERS,
    rope_half_split=True,
    tensors={"ffn_norm": "post_attention_norm.weight"},
    experts=file_experts(lambda keys, common: stored_gating(keys, unsaid="sigmoid")),
    check=glm4.check_file,
    output_bias=False,
    written=written,
)
FAMILY = Family(
    types=(
        ModelType(
            "glm4_moe",
            written_as=_GGUF,
            attention=GroupedKeys(
                bias_keys=dict.fromkeys(QKV, "attention_bias"), rope_dim=partial_rope(0.5), norm_key="use_qk_norm"
            ),
            defaults=_DEFAULTS,
            layers=_LAYERS,
            aliases={"num_local_experts": "n_routed_experts"},
            experts=ExpertKeys(
                deepseek2.sparse, deepseek2.v3_rule, count="n_routed_experts", shared="n_shared_experts", corrected=True
            ),
            next_token_layers=True,
            pre_tokenizer="glm4",
        ),
    ),
    gguf=_GGUF,
)
