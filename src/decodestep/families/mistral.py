"""Mistral, whose layers all have the same window, and Ministral, whose windows layer_types places. As files they are Llama's,
which llama.cpp reads without windows."""

from __future__ import annotations

from decodestep.families import llama
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Family, ModelType
from decodestep.families.common.grouped import GroupedKeys, same_windows, windows_by_type

_DEFAULTS = llama.DEFAULTS | {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}


def _windows(keys: Keys, layers: int) -> tuple[int, ...]:
    return windows_by_type(keys, layers, lambda i: True)


_MINISTRAL = ModelType("ministral", written_as=llama.GGUF, attention=GroupedKeys(windows=_windows), defaults=_DEFAULTS)
_MISTRAL = ModelType(
    "mistral",
    written_as=llama.GGUF,
    attention=GroupedKeys(windows=same_windows),
    defaults=_DEFAULTS,
    taken_for={"layer_types": _MINISTRAL},  # by AutoConfig: Mistral's own class does not read the key
)
FAMILY = Family(types=(_MISTRAL, _MINISTRAL))
