"""ERNIE 4.5, dense: Llama's layers whose rope pairs are adjacent in folders too."""

from __future__ import annotations

from decodestep.families import llama
from decodestep.families.common.description import Architecture, Family, ModelType
from decodestep.families.common.grouped import ATTENTION_PRODUCTS, GroupedFile, GroupedKeys

DEFAULTS = llama.DEFAULTS | {
    "vocab_size": 103424,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "use_bias": False,
    "head_dim": 128,
}
_USE_BIAS = dict.fromkeys(ATTENTION_PRODUCTS, "use_bias")
_GGUF = Architecture("ernie4_5", GroupedFile())
FAMILY = Family(
    types=(
        ModelType(
            "ernie4_5",
            written_as=_GGUF,
            attention=GroupedKeys(bias_keys=_USE_BIAS, half_split=False),
            defaults=DEFAULTS,
            mlp_bias="use_bias",
            pre_tokenizer="default",
        ),
    ),
    gguf=_GGUF,
)
