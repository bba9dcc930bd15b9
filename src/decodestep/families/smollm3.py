"""SmolLM3: layers without rope. A file has no key for them: they are every fourth one."""

from __future__ import annotations

from decodestep.families import llama
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Architecture, Family, ModelType
from decodestep.families.common.grouped import ATTENTION_BIAS, GroupedFile, GroupedKeys, windows_by_type
from decodestep.families.common.limits import MAX_LAYERS

_PERIOD = 4  # of which the last layer has no rope
_DEFAULTS = llama.DEFAULTS | {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "rope_theta": 2000000.0,
    "no_rope_layer_interval": _PERIOD,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
}


def _every(period: int, layers: int) -> tuple[int, ...]:
    return tuple(int((i + 1) % period == 0) for i in range(layers))


def _ropes(keys: Keys, layers: int) -> tuple[int, ...]:
    """1 for a layer without rope: in no_rope_layers that is 0."""
    flags, period = keys.get("no_rope_layers"), keys.size("no_rope_layer_interval", most=MAX_LAYERS)
    if flags is None:
        return _every(period, layers)
    if not isinstance(flags, list) or len(flags) < layers or not all(flag in (0, 1) for flag in flags):
        raise keys.refusal(f"no_rope_layers must have 0 or 1 for each of {layers} layers")
    return tuple(1 - int(flag) for flag in flags[:layers])


def _windows(keys: Keys, layers: int) -> tuple[int, ...]:
    ropes, used = _ropes(keys, layers), keys.flag("use_sliding_window")
    found = windows_by_type(keys, layers, lambda i: used and bool(ropes[i]))  # layer_types count whatever use_sliding_window is
    return found if any(found) else ()


_GGUF = Architecture("smollm3", GroupedFile(ropes=lambda windows, layers: _every(_PERIOD, layers)), output_bias=False)
FAMILY = Family(
    types=(
        ModelType(
            "smollm3",
            written_as=_GGUF,
            attention=GroupedKeys(bias_keys=ATTENTION_BIAS, windows=_windows, ropes=_ropes),
            defaults=_DEFAULTS,
            mlp_bias="mlp_bias",
            pre_tokenizer="llama-bpe",
        ),
    ),
    gguf=_GGUF,
)
