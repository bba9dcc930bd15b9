"""Hunyuan, dense: norms of the heads of queries and keys after their rope, whose base a fixed factor stretches.

A file has the stretched base.
"""

from __future__ import annotations

from decodestep.families import llama
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Architecture, Family, Fields, Layers, ModelType
from decodestep.families.common.grouped import ATTENTION_BIAS, GroupedFile, GroupedKeys

_LAYERS = Layers(query_key_norm="head_after_rope")
_DEFAULTS = llama.DEFAULTS | {"vocab_size": 290943, "rms_norm_eps": 1e-5}


def _check(keys: Keys, common: Fields) -> None:
    if keys.get("use_cla"):
        raise keys.refusal("use_cla, keys and values that layers share, is not supported")


_GGUF = Architecture("hunyuan-dense", GroupedFile(), _LAYERS, rope_half_split=True, output_bias=False)
FAMILY = Family(
    types=(
        ModelType(
            "hunyuan_v1_dense",
            written_as=_GGUF,
            attention=GroupedKeys(bias_keys=ATTENTION_BIAS),
            defaults=_DEFAULTS,
            layers=_LAYERS,
            rope_types={"dynamic": "fixed"},
            check=_check,
            tensors={"queries_norm": "self_attn.query_layernorm.weight", "keys_norm": "self_attn.key_layernorm.weight"},
            pre_tokenizer="hunyuan-dense",
        ),
    ),
    gguf=_GGUF,
)
