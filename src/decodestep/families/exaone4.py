"""EXAONE 4: norms after blocks alone and of heads; where layers have windows, those without one have no rope."""

from __future__ import annotations

from collections.abc import Callable

from decodestep.decoding.config import Config
from decodestep.families import llama
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Architecture, Family, Fields, Layers, ModelType
from decodestep.families.common.grouped import (
    GroupedFile,
    GroupedKeys,
    patterned_file_windows,
    windows_by_type,
    written_pattern,
)
from decodestep.families.common.limits import MAX_LAYERS
from decodestep.families.common.refusals import wide_heads

_PERIOD = 4  # of which the last layer sees all positions
_LAYERS = Layers(query_key_norm="head", block_norms="after")
_DEFAULTS = llama.DEFAULTS | {
    "vocab_size": 102400,
    "intermediate_size": 16384,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-5,
    "sliding_window": 4096,
    "sliding_window_pattern": _PERIOD,
}


def _slides(keys: Keys) -> Callable[[int], bool]:
    """By a period, or by letters for the layers of one, of which "L" has a window; published models have both."""
    pattern = keys.get("sliding_window_pattern")
    if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:
        return lambda i: pattern[i % len(pattern)] == "L"
    period = keys.size("sliding_window_pattern", most=MAX_LAYERS)
    return lambda i: (i + 1) % period != 0


def _windows(keys: Keys, layers: int) -> tuple[int, ...]:
    return () if keys.get("sliding_window") is None else windows_by_type(keys, layers, _slides(keys))


def _ropes(windows: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """1 for a layer without rope."""
    return tuple(int(window == 0) for window in windows) if any(windows) else ()


def _written(config: Config) -> Fields:
    return written_pattern(config) if any(config.grouped.windows) else {}


_GGUF = Architecture(
    "exaone4",
    GroupedFile(windows=patterned_file_windows(_PERIOD), ropes=_ropes),
    _LAYERS,
    rope_half_split=True,
    rope_divisors=True,
    output_bias=False,
    refused=wide_heads,
    written=_written,
)
FAMILY = Family(
    types=(
        ModelType(
            "exaone4",
            written_as=_GGUF,
            attention=GroupedKeys(windows=_windows, ropes=lambda keys, layers: _ropes(_windows(keys, layers), layers)),
            defaults=_DEFAULTS,
            layers=_LAYERS,
            tensors={
                "attention_post_norm": "post_attention_layernorm.weight",
                "ffn_post_norm": "post_feedforward_layernorm.weight",
            },
            pre_tokenizer="exaone4",
        ),
    ),
    gguf=_GGUF,
)
