"""Qwen3: norms of the heads of queries and keys."""

from __future__ import annotations

from decodestep.families import qwen2
from decodestep.families.common.description import Architecture, Family, Layers, ModelType
from decodestep.families.common.grouped import ATTENTION_BIAS, GroupedFile, GroupedKeys

DEFAULTS = qwen2.DEFAULTS | {"head_dim": 128}
LAYERS = Layers(query_key_norm="head")
_GGUF = Architecture("qwen3", GroupedFile(), LAYERS, rope_half_split=True, output_bias=False)
FAMILY = Family(
    types=(
        ModelType(
            "qwen3",
            written_as=_GGUF,
            attention=GroupedKeys(bias_keys=ATTENTION_BIAS, windows=qwen2.windows),
            defaults=DEFAULTS,
            layers=LAYERS,
        ),
    ),
    gguf=_GGUF,
)
