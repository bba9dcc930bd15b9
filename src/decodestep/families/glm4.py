"""GLM-4-0414 and GLM-Z1: norms before and after blocks, a rope of adjacent pairs over half of a head, one weight of gate and
up."""

from __future__ import annotations

from decodestep.families import llama
from decodestep.families.common.description import Architecture, Family, Fields, Layers, ModelType
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.grouped import QKV, GroupedFile, GroupedKeys, partial_rope

_LAYERS = Layers(block_norms="both")
DEFAULTS = llama.DEFAULTS | {
    "vocab_size": 151552,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1.5625e-7,
    "attention_bias": True,
}


ATTENTION = GroupedKeys(bias_keys=dict.fromkeys(QKV, "attention_bias"), rope_dim=partial_rope(0.5), half_split=False)


def check_file(keys: GgufKeys, common: Fields) -> None:
    if "rope.dimension_sections" in keys:
        raise keys.refusal("rope.dimension_sections, rotations of images, is not supported")


_GGUF = Architecture(
    "glm4",
    GroupedFile(partial_rope=True),
    _LAYERS,
    tensors={"gate_up": "ffn_up.weight"},
    check=check_file,
    output_bias=False,
)
FAMILY = Family(
    types=(
        ModelType(
            "glm4",
            written_as=_GGUF,
            attention=ATTENTION,
            defaults=DEFAULTS,
            layers=_LAYERS,
            tensors={
                "attention_post_norm": "post_self_attn_layernorm.weight",
                "ffn_post_norm": "post_mlp_layernorm.weight",
                "gate_up": "mlp.gate_up_proj.weight",
            },
            pre_tokenizer="glm4",
        ),
    ),
    gguf=_GGUF,
)
