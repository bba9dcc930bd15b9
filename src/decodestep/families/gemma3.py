"""Gemma 3, text: norms before and after blocks and of heads, windows and a rope of their own in most layers, GELU.

Norms multiply by 1 + weight; a file has the sum. transformers divides scores by the root of query_pre_attn_scalar, for which a
file has no key: it is the width of a head, in the 27B another one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from decodestep.decoding.config import Config
from decodestep.families import llama
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Activation, Architecture, Family, Fields, Layers, ModelType, Wrapper
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.grouped import (
    ATTENTION_BIAS,
    GroupedFile,
    GroupedKeys,
    layer_types,
    patterned_file_windows,
    sliding_rope,
    windows_by_type,
)
from decodestep.families.common.limits import MAX_LAYERS

_PERIOD = 6  # of which the last layer sees all positions
_27B_LAYERS = 62  # the one whose scores are scaled by another width than a head's
_LAYERS = Layers(query_key_norm="head", block_norms="both", activation="gelu_gated")
# The usual name of the norm before the feed-forward block stands for another.
TENSORS = {
    "attention_post_norm": "post_attention_layernorm.weight",
    "ffn_norm": "pre_feedforward_layernorm.weight",
    "ffn_post_norm": "post_feedforward_layernorm.weight",
}
_DEFAULTS = llama.DEFAULTS | {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}


def _check_file(keys: GgufKeys, common: Fields) -> None:
    head_dim = keys.size("attention.key_length", common["hidden"] // common["heads"])
    for key in ("attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"):
        if keys.size(key, head_dim) != head_dim:
            raise keys.refusal(f"{key}, another width of the heads of layers with windows, is not supported")


def file_scale(layers: int) -> Callable[[GgufKeys, Fields, int], float]:
    """Of the scores: by the width of a head, or in the model of so many layers by the share of a head in the hidden state."""

    def scale(keys: GgufKeys, common: Fields, head_dim: int) -> float:
        shared = common["layers"] == layers
        return float((common["hidden"] // common["heads"] if shared else head_dim) ** -0.5)

    return scale


def folder_scale(keys: Keys) -> float:
    return keys.number("query_pre_attn_scalar", least=1e-6, most=1e6) ** -0.5


def embedding_scale(common: Fields) -> float:
    return float(np.float32(common["hidden"] ** 0.5))


def _written(config: Config) -> Fields:
    windows = config.grouped.windows
    return {"attention.sliding_window_pattern": windows.index(0) + 1 if 0 in windows else config.layers + 1}


def _slides(keys: Keys) -> Callable[[int], bool]:
    period = keys.size("sliding_window_pattern", _PERIOD, most=MAX_LAYERS)
    return lambda i: (i + 1) % period != 0


def _windows(keys: Keys, layers: int) -> tuple[int, ...]:
    return windows_by_type(keys, layers, _slides(keys))


def _ropes(keys: Keys, layers: int) -> tuple[int, ...]:
    return tuple(int(kind == "sliding_attention") for kind in layer_types(keys, layers, _slides(keys)))


def _check(keys: Keys, common: Fields) -> None:
    for key in ("final_logit_softcapping", "attn_logit_softcapping", "use_bidirectional_attention"):
        if keys.get(key):
            raise keys.refusal(f"{key} is not supported")


_GGUF = Architecture(
    "gemma3",
    GroupedFile(
        windows=patterned_file_windows(_PERIOD),
        ropes=lambda windows, layers: tuple(int(window > 0) for window in windows),
        scale=file_scale(_27B_LAYERS),
    ),
    _LAYERS,
    rope_half_split=True,
    more=lambda keys, common: {"embedding_scale": embedding_scale(common)},
    check=_check_file,
    second_rope=sliding_rope,
    output_bias=False,
    written=_written,
)
FAMILY = Family(
    types=(
        ModelType(
            "gemma3_text",
            written_as=_GGUF,
            attention=GroupedKeys(
                bias_keys=ATTENTION_BIAS,
                windows=_windows,
                ropes=_ropes,
                scale=folder_scale,
            ),
            defaults=_DEFAULTS,
            layers=_LAYERS,
            activation=Activation("hidden_activation", ("gelu_pytorch_tanh",)),
            more=lambda keys, common: {"embedding_scale": embedding_scale(common)},
            check=_check,
            ropes_by_layer_type=True,
            tensors=TENSORS,
            norm_shift=1.0,
            pre_tokenizer="default",
        ),
    ),
    gguf=_GGUF,
    wrappers=(Wrapper("gemma3", unsaid="gemma3_text"),),
)
