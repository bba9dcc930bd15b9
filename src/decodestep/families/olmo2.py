"""OLMo 2: norms after blocks alone, and of queries and keys over all heads of a token.

As a file OLMo 3 has the same name: it is recognised by its windows.
"""

from __future__ import annotations

from decodestep.decoding.config import Config
from decodestep.families import llama
from decodestep.families.common.description import Architecture, Family, Fields, Layers, ModelType
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.grouped import ATTENTION_PRODUCTS, GroupedFile, GroupedKeys, file_window

_LAYERS = Layers(query_key_norm="row", block_norms="after")
_DEFAULTS = llama.DEFAULTS | {"vocab_size": 50304, "rms_norm_eps": 1e-5}


def _check_file(keys: GgufKeys, common: Fields) -> None:
    if file_window(keys):
        raise keys.refusal("attention.sliding_window, which files of OLMo 3 have, is not supported")


def _refused(config: Config, vectors: object) -> str | None:
    if config.grouped.biases:
        return "biases of attention"
    if config.heads * config.head_dim != config.hidden:
        return f"{config.heads} heads of {config.head_dim} values in a hidden state of {config.hidden}"
    return "an embedding that is the logits matrix" if config.tied else None


_GGUF = Architecture("olmo2", GroupedFile(), _LAYERS, rope_half_split=True, check=_check_file, refused=_refused)
FAMILY = Family(
    types=(
        ModelType(
            "olmo2",
            written_as=_GGUF,
            attention=GroupedKeys(optional_biases=ATTENTION_PRODUCTS),
            defaults=_DEFAULTS,
            layers=_LAYERS,
            pre_tokenizer="dbrx",
            # The usual name of the norm before the feed-forward block stands for another.
            tensors={
                "attention_post_norm": "post_attention_layernorm.weight",
                "ffn_post_norm": "post_feedforward_layernorm.weight",
            },
        ),
    ),
    gguf=_GGUF,
)
