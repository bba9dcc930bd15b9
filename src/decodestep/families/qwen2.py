"""Qwen2 and Qwen2.5: biases of queries, keys and values."""

from __future__ import annotations

from decodestep.families import llama
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Architecture, Family, ModelType
from decodestep.families.common.grouped import QKV, GroupedFile, GroupedKeys, windows_by_type
from decodestep.families.common.limits import MAX_LAYERS
from decodestep.families.common.refusals import wide_heads

DEFAULTS = llama.DEFAULTS | {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}


def windows(keys: Keys, layers: int) -> tuple[int, ...]:
    """From a layer on, if they are used at all."""
    if not keys.flag("use_sliding_window"):
        return ()
    first = keys.size("max_window_layers", least=0, most=MAX_LAYERS)
    return windows_by_type(keys, layers, lambda i: i >= first)


_GGUF = Architecture("qwen2", GroupedFile(), rope_half_split=True, refused=wide_heads)
FAMILY = Family(
    types=(ModelType("qwen2", written_as=_GGUF, attention=GroupedKeys(biases=QKV, windows=windows), defaults=DEFAULTS),),
    gguf=_GGUF,
)
