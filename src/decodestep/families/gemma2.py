"""Gemma 2: Gemma 3's layers without norms of heads, with one rope, and soft caps of scores and logits; every second layer has a
window, the first one too."""

from __future__ import annotations

from decodestep.decoding.config import Config
from decodestep.families import gemma3, llama
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Activation, Architecture, Family, Fields, Layers, ModelType
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.grouped import (
    ATTENTION_BIAS,
    CAPS,
    NO_CAP,
    GroupedFile,
    GroupedKeys,
    file_cap,
    folder_cap,
    patterned_file_windows,
    windows_by_type,
)
from decodestep.families.common.refusals import own_output

_27B_LAYERS = 46  # the one whose scores are scaled by another width than a head's
_LAYERS = Layers(block_norms="both", activation="gelu_gated")
_SCORE_CAP, _LOGITS_CAP, _WINDOW = 50.0, 30.0, 4096  # of files older than the keys, as in llama.cpp
_DEFAULTS = llama.DEFAULTS | {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": _WINDOW,
    "final_logit_softcapping": _LOGITS_CAP,
    "attn_logit_softcapping": _SCORE_CAP,
}


def _written(config: Config) -> Fields:
    return {CAPS["score"]: config.grouped.score_cap or NO_CAP, CAPS["logits"]: config.logits_cap or NO_CAP}


def _windows(keys: Keys, layers: int) -> tuple[int, ...]:
    return windows_by_type(keys, layers, lambda i: i % 2 == 0)


def _check(keys: Keys, common: Fields) -> None:
    if keys.get("use_bidirectional_attention"):
        raise keys.refusal("use_bidirectional_attention is not supported")


def _file_scaled(keys: GgufKeys, common: Fields) -> Fields:
    return {"embedding_scale": gemma3.embedding_scale(common), "logits_cap": file_cap("logits", _LOGITS_CAP)(keys)}


def _folder_scaled(keys: Keys, common: Fields) -> Fields:
    return {"embedding_scale": gemma3.embedding_scale(common), "logits_cap": folder_cap("logits")(keys)}


_GGUF = Architecture(
    "gemma2",
    GroupedFile(
        windows=patterned_file_windows(2, unsaid=_WINDOW),
        scale=gemma3.file_scale(_27B_LAYERS),
        score_cap=file_cap("score", _SCORE_CAP),
    ),
    _LAYERS,
    rope_half_split=True,
    more=_file_scaled,
    output_bias=False,
    refused=own_output,
    written=_written,
)
FAMILY = Family(
    types=(
        ModelType(
            "gemma2",
            written_as=_GGUF,
            attention=GroupedKeys(
                bias_keys=ATTENTION_BIAS, windows=_windows, scale=gemma3.folder_scale, score_cap=folder_cap("score")
            ),
            defaults=_DEFAULTS,
            layers=_LAYERS,
            activation=Activation("hidden_activation", ("gelu_pytorch_tanh",)),
            more=_folder_scaled,
            check=_check,
            tensors=gemma3.TENSORS,
            norm_shift=1.0,
            pre_tokenizer="default",
        ),
    ),
    gguf=_GGUF,
)
