"""Youtu-LLM: latent attention in dense layers. As files they are DeepSeek's."""

from __future__ import annotations

from decodestep.families import deepseek2
from decodestep.families.common.description import Family, ModelType
from decodestep.families.common.latent import LatentKeys

_DEFAULTS = deepseek2.LATENT_DEFAULTS | {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}
FAMILY = Family(
    types=(ModelType("youtu", written_as=deepseek2.GGUF, attention=LatentKeys(), defaults=_DEFAULTS),),
)
