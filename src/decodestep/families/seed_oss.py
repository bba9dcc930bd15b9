"""Seed-OSS: Llama's layers with biases of queries, keys and values. A file has the norm before the feed-forward block under the
name that others give to the norm after attention."""

from __future__ import annotations

from decodestep.families import llama
from decodestep.families.common.description import Architecture, Family, ModelType
from decodestep.families.common.grouped import ATTENTION_BIAS, GroupedFile, GroupedKeys

_DEFAULTS = llama.DEFAULTS | {
    "vocab_size": 155136,
    "intermediate_size": 27648,
    "num_hidden_layers": 64,
    "num_attention_heads": 80,
    "num_key_value_heads": 8,
    "max_position_embeddings": 524288,
    "attention_bias": True,
    "attention_out_bias": False,
    "head_dim": 128,
}
_GGUF = Architecture(
    "seed_oss",
    GroupedFile(),
    rope_half_split=True,
    tensors={"ffn_norm": "post_attention_norm.weight"},
    output_bias=False,
)
FAMILY = Family(
    types=(
        ModelType(
            "seed_oss",
            written_as=_GGUF,
            attention=GroupedKeys(bias_keys=ATTENTION_BIAS | {"attention_output": "attention_out_bias"}),
            defaults=_DEFAULTS,
            mlp_bias="mlp_bias",
            pre_tokenizer="seed-coder",
        ),
    ),
    gguf=_GGUF,
)
