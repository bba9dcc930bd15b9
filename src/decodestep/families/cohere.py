"""Cohere's Command R of 2024: Command R7B's layers without windows, all with rope."""

from __future__ import annotations

from decodestep.families import cohere2
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Architecture, Family, Fields, ModelType
from decodestep.families.common.grouped import ATTENTION_BIAS, GroupedFile, GroupedKeys
from decodestep.families.common.refusals import attention_biases, first_of, own_output, wide_heads

_DEFAULTS = cohere2.DEFAULTS | {"rope_theta": 500000.0}


def _check(keys: Keys, common: Fields) -> None:
    if keys.flag("use_qk_norm"):
        raise keys.refusal("use_qk_norm, of Command R+, is not supported")


_GGUF = Architecture(
    "command-r",
    GroupedFile(),
    cohere2.LAYERS,
    more=cohere2.file_factor,
    output_bias=False,
    written=cohere2.written,
    refused=first_of(attention_biases, wide_heads, own_output),
)
FAMILY = Family(
    types=(
        ModelType(
            "cohere",
            written_as=_GGUF,
            attention=GroupedKeys(bias_keys=ATTENTION_BIAS, half_split=False),
            defaults=_DEFAULTS,
            layers=cohere2.LAYERS,
            more=cohere2.folder_factor,
            check=_check,
            pre_tokenizer="command-r",
        ),
    ),
    gguf=_GGUF,
)
