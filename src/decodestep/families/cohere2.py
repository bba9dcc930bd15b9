"""Cohere Command R7B and Command A: both blocks of a layer read one centred norm, side by side; layers without a window have no
rope; a factor of the logits."""

from __future__ import annotations

from decodestep.decoding.config import Config
from decodestep.families import llama
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Architecture, Family, Fields, Layers, ModelType
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.grouped import (
    ATTENTION_BIAS,
    GroupedFile,
    GroupedKeys,
    layer_types,
    patterned_file_windows,
    windows_by_type,
)
from decodestep.families.common.limits import MAX_LAYERS
from decodestep.families.common.refusals import attention_biases, first_of, own_output

_PERIOD = 4  # of which the last layer sees all positions; a file has no key for it
LAYERS = Layers(block_norms="parallel", centred_norms=True)
_FACTOR = {"least": 1e-6, "most": 1e6}
DEFAULTS = {key: value for key, value in llama.DEFAULTS.items() if key != "rms_norm_eps"} | {
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "max_position_embeddings": 8192,
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "logit_scale": 0.0625,
    "sliding_window": 4096,
    "sliding_window_pattern": _PERIOD,
}
# Keys of published folders that transformers does not read, and what its class computes.
_COMPUTED = {
    "rotary_pct": 1.0,
    "use_parallel_block": True,
    "use_qk_norm": False,
    "position_embedding_type": "rope_gptj",
    "use_gated_activation": True,
}


def _slides(keys: Keys) -> list[bool]:
    period, layers = keys.size("sliding_window_pattern", most=MAX_LAYERS), keys.size("num_hidden_layers", most=MAX_LAYERS)
    return [kind == "sliding_attention" for kind in layer_types(keys, layers, lambda i: (i + 1) % period != 0)]


def _windows(keys: Keys, layers: int) -> tuple[int, ...]:
    slides = _slides(keys)
    return windows_by_type(keys, layers, lambda i: slides[i])


def _ropes(keys: Keys, layers: int) -> tuple[int, ...]:
    """1 for a layer without rope."""
    return tuple(int(not slides) for slides in _slides(keys))


def _check(keys: Keys, common: Fields) -> None:
    for key, computed in _COMPUTED.items():
        if keys.get(key) not in (None, computed):
            raise keys.refusal(f"{key} {keys.get(key)!r} is not supported ({computed!r} is)")
    if keys.size_or_none("head_dim") not in (None, common["hidden"] // common["heads"]):
        raise keys.refusal(f"head_dim {keys.get('head_dim')} is not supported: heads have the share of the hidden state")


def _other_windows(config: Config, vectors: object) -> str | None:
    if any((window > 0) != ((i + 1) % _PERIOD != 0) for i, window in enumerate(config.grouped.windows)):
        return f"other layers with windows than all except every {_PERIOD}th"
    return None


def file_factor(keys: GgufKeys, common: Fields) -> Fields:
    return {"logits_divisor": 1 / keys.number("logit_scale", **_FACTOR)}


def folder_factor(keys: Keys, common: Fields) -> Fields:
    return {"logits_divisor": 1 / keys.number("logit_scale", **_FACTOR)}


def written(config: Config) -> Fields:
    return {"logit_scale": 1 / config.logits_divisor}


_GGUF = Architecture(
    "cohere2",
    GroupedFile(
        windows=patterned_file_windows(_PERIOD),
        ropes=lambda windows, layers: tuple(int(window == 0) for window in windows),
    ),
    LAYERS,
    more=file_factor,
    output_bias=False,
    written=written,
    refused=first_of(_other_windows, attention_biases, own_output),
)
FAMILY = Family(
    types=(
        ModelType(
            "cohere2",
            written_as=_GGUF,
            attention=GroupedKeys(bias_keys=ATTENTION_BIAS, windows=_windows, ropes=_ropes, half_split=False),
            defaults=DEFAULTS,
            layers=LAYERS,
            more=folder_factor,
            check=_check,
            pre_tokenizer="command-r",
        ),
    ),
    gguf=_GGUF,
)
