"""Llama and its relatives, and the models of other names that have its layers."""

from __future__ import annotations

from typing import Any

from decodestep.families.common.description import Architecture, Family, ModelType
from decodestep.families.common.experts import Gating, file_experts
from decodestep.families.common.grouped import ATTENTION_BIAS, GroupedFile, GroupedKeys

DEFAULTS: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
}
GGUF = Architecture(
    "llama",
    GroupedFile(long_rope=True),
    experts=file_experts(lambda keys, common: Gating("softmax", normalise=True, scale=1.0)),
    feed_forward_biases=True,
    rope_divisors=True,
)
FAMILY = Family(
    types=(
        ModelType(
            "llama",
            written_as=GGUF,
            attention=GroupedKeys(bias_keys=ATTENTION_BIAS),
            defaults=DEFAULTS,
            mlp_bias="mlp_bias",
        ),
    ),
    gguf=GGUF,
)
