"""Ministral 3, whose queries grow with the position, and Mistral Small 3: Mistral's text model beside an encoder of images."""

from __future__ import annotations

from decodestep.families import llama
from decodestep.families.common.description import Architecture, Family, ModelType, Wrapper
from decodestep.families.common.grouped import GroupedFile, GroupedKeys, same_windows

_GROWTH = 0.1
_DEFAULTS = llama.DEFAULTS | {
    "vocab_size": 131072,
    "intermediate_size": 14336,
    "num_hidden_layers": 34,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
    "rope_theta": 1000000.0,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": _GROWTH,
    },
}
_GGUF = Architecture("mistral3", GroupedFile(), yarn_multiplier=1.0)
FAMILY = Family(
    types=(
        ModelType(
            "ministral3",
            written_as=_GGUF,
            attention=GroupedKeys(windows=same_windows),
            defaults=_DEFAULTS,
            query_growth="llama_4_scaling_beta",
            pre_tokenizer="tekken",
        ),
    ),
    gguf=_GGUF,
    wrappers=(Wrapper("mistral3", unsaid="ministral3"),),
)
